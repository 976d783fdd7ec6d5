"""A convolution over the tokens of a sequence, of any number of tokens of each sequence."""

import triton
import triton.language as tl

from bringup.compile.kernels.source.launches import let_next_start, wait_for_last


@triton.jit
def conv_tokens(
    x_NC, weight_CK, state_RTC, bias_C, starts, rows, lengths, out_NC,
    N: tl.constexpr, B: tl.constexpr, C: tl.constexpr, K: tl.constexpr, X_ROW: tl.constexpr, ENDS: tl.constexpr,
    TOKENS: tl.constexpr, CHANNELS: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """out[n, c] = Σ weight[c, k] · x[n - (K - 1) + k, c] + bias[c]. The states do not change: see `conv_state`.

    Grid: ceil(C / CHANNELS), ceil(N / TOKENS). ENDS is B, rounded up to a power of two. dtypes as in `conv_step`.
    Bytes: x and the result once, the weight and the states of the sequences. Padding reads tokens of the last sequence.
    """
    let_next_start(EARLY)
    wait_for_last(EARLY)
    c = (tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS))[None, :]
    token = (tl.program_id(1) * TOKENS + tl.arange(0, TOKENS)).to(tl.int64)
    at = tl.arange(0, ENDS)
    ends = tl.load(starts + 1 + at, mask=at < B, other=9223372036854775807)
    sequence = tl.minimum(tl.sum((ends[None, :] <= token[:, None]).to(tl.int32), 1), B - 1)
    first = tl.load(starts + sequence)
    count = tl.load(starts + sequence + 1) - first
    is_new = tl.load(lengths + sequence) <= count
    state = state_RTC + (tl.load(rows + sequence) * ((K - 1) * C))[:, None]
    live = (token < N)[:, None] & (c < C)
    total = tl.zeros((TOKENS, CHANNELS), tl.float32)
    for k in tl.static_range(K):
        from_start = token - first - (K - 1 - k)
        is_given = (from_start >= 0)[:, None]
        given = tl.load(x_NC + (first + from_start)[:, None] * X_ROW + c, mask=live & is_given, other=0.0)
        is_kept = ((from_start < 0) & (is_new == 0))[:, None]
        kept = tl.load(state + (from_start + (K - 1))[:, None] * C + c, mask=live & is_kept, other=0.0)
        weight = tl.load(weight_CK + c * K + k, mask=c < C, other=0.0).to(tl.float32)
        total += weight * tl.where(is_given, given, kept).to(tl.float32)
    if bias_C is not None:
        total += tl.load(bias_C + c, mask=c < C, other=0.0).to(tl.float32)
    tl.store(out_NC + token[:, None] * C + c, total.to(out_NC.dtype.element_ty), mask=live)
