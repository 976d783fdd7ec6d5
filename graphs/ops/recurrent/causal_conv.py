"""Causal convolution of each channel over the tokens of a sequence, with a state for each sequence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bringup.graphs.ops.op import op

if TYPE_CHECKING:
    from torch import Tensor

    from bringup.graphs.core.step import Step


@op("x_NC[N C] weight_CK[C K] state_RTC[R T C]! bias_C[C] -> [N C]")
def causal_conv(x_NC: Tensor, weight_CK: Tensor, state_RTC: Tensor, bias_C: Tensor | None, step: Step) -> Tensor:
    """Σ over k of weight[:, k] · x[n - (K - 1) + k], plus the bias: a depthwise convolution of K taps, in float32.

    A token sees tokens of its own sequence only; zeros precede the first. The T = K - 1 tokens before this step's are
    in the state, in the row of the sequence (`step.rows`), oldest first; afterwards it has the last T of the sequence,
    without proposals (`Step.proposals`). Results for padding are finite and undefined. The function is that of torch's
    `Conv1d` with `groups=C`, padded on the left:
    https://docs.pytorch.org/docs/stable/generated/torch.nn.Conv1d.html
    """
    import torch

    taps, (B, T) = weight_CK.shape[1], (step.num_sequences, state_RTC.shape[1])
    before_BTC = step.previous(state_RTC)
    rows_XC = torch.cat((before_BTC.flatten(0, 1), x_NC))
    sequence_N = step.sequences().clamp(max=B - 1)
    starts_N, first = step.starts[sequence_N], sequence_N * T
    at_N = torch.arange(x_NC.shape[0])
    out_NC = torch.zeros_like(x_NC, dtype=torch.float32)
    for k in range(taps):
        from_start_N = at_N - (taps - 1 - k) - starts_N
        index_N = torch.where(from_start_N >= 0, B * T + starts_N + from_start_N, first + T + from_start_N)
        out_NC = out_NC + weight_CK[:, k].float() * rows_XC[index_N].float()
    if bias_C is not None:
        out_NC = out_NC + bias_C.float()

    starts_B1, certain_B1 = step.starts[:-1, None], step.num_certain()[:, None]
    from_start_BT = certain_B1 - T + torch.arange(T)
    of_state_BT = torch.arange(B)[:, None] * T + T + from_start_BT
    index_BT = torch.where(from_start_BT >= 0, B * T + starts_B1 + from_start_BT, of_state_BT)
    after_BTC = rows_XC[index_BT].to(state_RTC.dtype)
    state_RTC.index_copy_(0, step.rows, after_BTC)
    return out_NC.to(x_NC.dtype)
