"""Causal convolution of one token of each sequence, with the shift of the state."""

import triton
import triton.language as tl

from bringup.compile.kernels.source.launches import let_next_start, wait_for_last


@triton.jit
def causal_conv_step(
    x_NC, weight_CK, bias_C, state_RTC, rows_B, lengths_B, out_NC,
    C: tl.constexpr, TAPS: tl.constexpr, PADDING: tl.constexpr, X_ROW: tl.constexpr, W_ROW: tl.constexpr,
    W_TAP: tl.constexpr, S_ROW: tl.constexpr, S_TAP: tl.constexpr, BC: tl.constexpr, KNOWN: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """Grid: C / BC, B. A program has some channels of a sequence; a lane has all tokens of a channel.

    dtypes: x, weight, bias and state float32, bfloat16 or float16; the sum is float32. rows and lengths int64. PADDING:
    the state's row for padding, which several programs have, so none of them reads or writes it. KNOWN: earlier
    launches of the step write only x. Bytes: each operand once; the state is read and written once. Operations: 2 for
    each tap and channel.
    """
    let_next_start(EARLY)
    if not KNOWN:
        wait_for_last(EARLY)
    b = tl.program_id(1)
    c = tl.program_id(0) * BC + tl.arange(0, BC)
    live = c < C
    total = tl.zeros((BC,), tl.float32)
    if bias_C is not None:
        total += tl.load(bias_C + c, mask=live, other=0.0).to(tl.float32)
    last = tl.load(weight_CK + c * W_ROW + (TAPS - 1) * W_TAP, mask=live, other=0.0).to(tl.float32)
    if state_RTC is not None:
        row = tl.load(rows_B + b)
        owned = live & (row != PADDING)
        began = owned & (tl.load(lengths_B + b) > 1)
        place = state_RTC + row * S_ROW + c
        before = ()
        for t in tl.static_range(TAPS - 1):
            before = before + (tl.load(place + t * S_TAP, mask=began, other=0.0),)  # noqa: RUF005  Triton has no `*`
        for t in tl.static_range(TAPS - 1):
            weight = tl.load(weight_CK + c * W_ROW + t * W_TAP, mask=live, other=0.0).to(tl.float32)
            total += weight * before[t].to(tl.float32)
    if KNOWN:
        wait_for_last(EARLY)
    x = tl.load(x_NC + b.to(tl.int64) * X_ROW + c, mask=live, other=0.0)
    total += last * x.to(tl.float32)
    tl.store(out_NC + b.to(tl.int64) * C + c, total.to(out_NC.dtype.element_ty), mask=live)
    if state_RTC is not None:
        for t in tl.static_range(TAPS - 2):
            tl.store(place + t * S_TAP, before[t + 1], mask=owned)
        tl.store(place + (TAPS - 2) * S_TAP, x.to(state_RTC.dtype.element_ty), mask=owned)
