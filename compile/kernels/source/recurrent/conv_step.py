"""A convolution over the tokens of a sequence, of one token of each sequence."""

import triton
import triton.language as tl

from bringup.compile.kernels.source.launches import let_next_start, wait_for_last
from bringup.compile.kernels.source.recurrent.sequence import tokens_of


@triton.jit
def conv_step(
    x_NC, weight_CK, state_RTC, bias_C, starts, rows, lengths, out_NC,
    N: tl.constexpr, B: tl.constexpr, C: tl.constexpr, K: tl.constexpr, X_ROW: tl.constexpr, CHANNELS: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """out[n, c] = Σ weight[c, k] · x[n - (K - 1) + k, c] + bias[c], and the state moves on by one token.

    Grid: ceil(C / CHANNELS), B + 1; the last row of programs stores zeros for padding. dtypes: x, the state and the
    result the same, float32, bfloat16 or float16; sums in float32. Bytes: the weight, and of each sequence its state,
    read and written, its token and its result. A lane has one channel, and reads a row before it overwrites it.
    """
    let_next_start(EARLY)
    c = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    sequence = tl.program_id(1)
    is_channel = c < C
    wait_for_last(EARLY)
    if sequence == B:
        for token in range(tl.load(starts + B), N):
            tl.store(out_NC + token * C + c, tl.zeros((CHANNELS,), out_NC.dtype.element_ty), mask=is_channel)
        return
    first, count, row, is_new = tokens_of(sequence, starts, rows, lengths)
    if count <= 0:
        return
    state = state_RTC + row * ((K - 1) * C) + c
    x = tl.load(x_NC + first * X_ROW + c, mask=is_channel, other=0.0)
    total = tl.zeros((CHANNELS,), tl.float32)
    for k in tl.static_range(K - 1):
        before = tl.load(state + k * C, mask=is_channel & (is_new == 0), other=0.0)
        weight = tl.load(weight_CK + c * K + k, mask=is_channel, other=0.0).to(tl.float32)
        total += weight * before.to(tl.float32)
        if k > 0:
            tl.store(state + (k - 1) * C, before, mask=is_channel)
    total += tl.load(weight_CK + c * K + (K - 1), mask=is_channel, other=0.0).to(tl.float32) * x.to(tl.float32)
    if K > 1:
        tl.store(state + (K - 2) * C, x, mask=is_channel)
    if bias_C is not None:
        total += tl.load(bias_C + c, mask=is_channel, other=0.0).to(tl.float32)
    tl.store(out_NC + first * C + c, total.to(out_NC.dtype.element_ty), mask=is_channel)
