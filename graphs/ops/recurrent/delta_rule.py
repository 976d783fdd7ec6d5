"""The gated delta rule: linear attention whose state is one matrix for each head of each sequence.

N tokens of the step · B sequences · G key heads · R value heads of each · H = G · R · K channels of a query and a key ·
V of a value · C tokens of a chunk
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bringup.graphs.ops.op import op
from bringup.graphs.ops.recurrent.chunks import attend, decays, each_sequence

if TYPE_CHECKING:
    from torch import Tensor

    from bringup.graphs.core.step import Step

EPS = 1e-6  # added to the squared length of a query or a key (transformers' `l2norm`)


@op("q_NGK[N G K] k_NGK[N G K] v_NGRV[N G R V] decay_NH[N H] beta_NH[N H] state_SHKV[S H K V]! -> [N H V]")
def gated_delta_rule(
    q_NGK: Tensor, k_NGK: Tensor, v_NGRV: Tensor, decay_NH: Tensor, beta_NH: Tensor, state_SHKV: Tensor, step: Step
) -> Tensor:
    """Updates the state of each sequence token by token, and multiplies it by each query (Yang et al. 2024).

    With queries and keys of length 1, and queries divided by √K, a token does, in float32 ("Gated Delta Networks",
    equation 10)::

        S = exp(decay) · S
        S = S + k ⊗ (beta · (v - k · S))
        result = q · S

    `decay` is a logarithm, at most 0. The state is in the row of the sequence (`step.rows`), zeros before its first
    token. Results for padding are finite and undefined.

    Here in chunks of C tokens, as matrix products (Yang et al. 2024, "Parallelizing Linear Transformers with the Delta
    Rule over Sequence Length", section 3).
    """
    repeats, scale = v_NGRV.shape[2], q_NGK.shape[2] ** -0.5
    q_HNK = (_unit(q_NGK) * scale).repeat_interleave(repeats, 1).transpose(0, 1)
    k_HNK = _unit(k_NGK).repeat_interleave(repeats, 1).transpose(0, 1)
    v_HNV, decay_HN, beta_HN = v_NGRV.float().flatten(1, 2).transpose(0, 1), decay_NH.float().t(), beta_NH.float().t()
    if step.decode:
        before_BHKV = step.previous(state_SHKV).float()
        out_NHV, after_BHKV = _one_token(q_HNK, k_HNK, v_HNV, decay_HN, beta_HN, before_BHKV)
        state_SHKV.index_copy_(0, step.rows, after_BHKV.to(state_SHKV.dtype))
    else:
        out_NHV = each_sequence((q_HNK, k_HNK, v_HNV), (decay_HN, beta_HN), state_SHKV, step, _chunk)
    return out_NHV.to(v_NGRV.dtype)


def _unit(x: Tensor) -> Tensor:
    """The vectors along the last axis, divided by their lengths, float32."""
    wide = x.float()
    return wide * (wide.pow(2).sum(-1, keepdim=True) + EPS).rsqrt()


def _one_token(
    q_HBK: Tensor, k_HBK: Tensor, v_HBV: Tensor, decay_HB: Tensor, beta_HB: Tensor, state_BHKV: Tensor
) -> tuple[Tensor, Tensor]:
    """One token of each sequence: results [B, H, V] and the new states."""
    q_BHK1, k_BHK1 = q_HBK.transpose(0, 1)[..., None], k_HBK.transpose(0, 1)[..., None]
    decayed = decay_HB.t().exp()[..., None, None] * state_BHKV
    missing_BHV = v_HBV.transpose(0, 1) - (k_BHK1 * decayed).sum(2)
    state_BHKV = decayed + k_BHK1 * (beta_HB.t()[..., None] * missing_BHV)[:, :, None]
    return (q_BHK1 * state_BHKV).sum(2), state_BHKV


def _chunk(
    q_HCK: Tensor, k_HCK: Tensor, v_HCV: Tensor, decay_HC: Tensor, beta_HC: Tensor, state_HKV: Tensor
) -> tuple[Tensor, Tensor]:
    """The updates u of the state, S_i = Σ_j≤i exp(D_i - D_j) · k_j ⊗ u_j + exp(D_i) · S, for sums D of decays, solve
    (1 + A) · U = beta · (V - exp(D) · K · S) with the strictly lower A_ij = beta_i · exp(D_i - D_j) · k_i · k_j."""
    import torch

    since_HC1, apart_HCC = decays(decay_HC)
    of_itself = torch.arange(k_HCK.shape[1])[:, None] == torch.arange(k_HCK.shape[1])[None]
    lower_HCC = beta_HC[..., None] * (apart_HCC * (k_HCK @ k_HCK.transpose(1, 2))).masked_fill(of_itself, 0.0)
    wanted_HCV = beta_HC[..., None] * (v_HCV - since_HC1 * (k_HCK @ state_HKV))
    updates_HCV = _inverse(lower_HCC) @ wanted_HCV
    return attend(q_HCK, k_HCK, updates_HCV, since_HC1, apart_HCC, state_HKV)


def _inverse(lower_HCC: Tensor) -> Tensor:
    """(1 + lower)⁻¹ of strictly lower triangular matrices: from the inverses of diagonal blocks of 1, 2, 4, … rows.

    With the inverses P and Q of two neighbouring blocks and the block X below the first, the block of the inverse
    below it is -Q · X · P.
    """
    import torch

    size = lower_HCC.shape[1]
    row, column = torch.arange(size)[:, None], torch.arange(size)[None]
    inverse = torch.eye(size).expand_as(lower_HCC)
    block = 1
    while block < size:
        below = (row // (2 * block) == column // (2 * block)) & (row // block != column // block)
        inverse = inverse - inverse @ lower_HCC.masked_fill(~below, 0.0) @ inverse
        block *= 2
    return inverse
