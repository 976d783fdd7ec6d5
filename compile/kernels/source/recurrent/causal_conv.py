"""Causal convolution of the tokens of prompts; `causal_conv_state` then writes the states."""

import triton
import triton.language as tl

from bringup.compile.kernels.source.launches import let_next_start, wait_for_last
from bringup.compile.kernels.source.recurrent.sequences import sequence_of


@triton.jit
def causal_conv(
    x_NC, weight_CK, bias_C, state_RTC, starts, rows_B, lengths_B, out_NC,
    N: tl.constexpr, C: tl.constexpr, B: tl.constexpr, TAPS: tl.constexpr, PADDING: tl.constexpr, X_ROW: tl.constexpr,
    W_ROW: tl.constexpr, W_TAP: tl.constexpr, S_ROW: tl.constexpr, S_TAP: tl.constexpr, ENDS: tl.constexpr,
    BN: tl.constexpr, BC: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Grid: C / BC, N / BN. A token reads earlier tokens from x, and those of earlier steps from the state.

    dtypes: x, weight, bias and state float32, bfloat16 or float16; the sum is float32. starts, rows and lengths int64.
    ENDS: B, rounded up to a power of two. For padding after the last sequence, the tokens before it are zeros. Bytes:
    each operand once, if a cache keeps a tile of x for the taps. Operations: 2 for each tap and element of x.
    """
    let_next_start(EARLY)
    wait_for_last(EARLY)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    c = tl.program_id(0) * BC + tl.arange(0, BC)[None, :]
    b = sequence_of(starts, n, B, ENDS)
    real = (n < N) & (b < B)
    first = tl.load(starts + b, mask=real, other=0)
    row = tl.load(rows_B + b, mask=real, other=PADDING)
    count = tl.load(starts + b + 1, mask=real, other=0) - first
    began = real & (row != PADDING) & (tl.load(lengths_B + b, mask=real, other=0) > count)
    of_tile = (n < N)[:, None] & (c < C)
    total = tl.zeros((BN, BC), tl.float32)
    if bias_C is not None:
        total += tl.load(bias_C + c, mask=c < C, other=0.0).to(tl.float32)
    for k in range(TAPS):
        weight = tl.load(weight_CK + c * W_ROW + k * W_TAP, mask=c < C, other=0.0).to(tl.float32)
        at = n - (TAPS - 1 - k)
        inside = at >= tl.where(real, first, n)
        x = tl.load(x_NC + at[:, None].to(tl.int64) * X_ROW + c, mask=inside[:, None] & of_tile, other=0.0)
        value = x.to(tl.float32)
        if state_RTC is not None:
            place = state_RTC + (row * S_ROW + (TAPS - 1 + at - first) * S_TAP)[:, None] + c
            value += tl.load(place, mask=(began & (at < first))[:, None] & of_tile, other=0.0).to(tl.float32)
        total += weight * value
    tl.store(out_NC + n[:, None].to(tl.int64) * C + c, total.to(out_NC.dtype.element_ty), mask=of_tile)
