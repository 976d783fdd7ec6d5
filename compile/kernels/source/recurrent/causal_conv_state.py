"""The states of a causal convolution after the tokens of prompts."""

import triton
import triton.language as tl

from bringup.compile.kernels.source.launches import let_next_start, wait_for_last
from bringup.compile.kernels.source.recurrent.sequences import tokens_of


@triton.jit
def causal_conv_state(
    x_NC, state_RTC, starts, rows_B, lengths_B, certain_B,
    C: tl.constexpr, TAPS: tl.constexpr, PADDING: tl.constexpr, X_ROW: tl.constexpr, S_ROW: tl.constexpr,
    S_TAP: tl.constexpr, BC: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """The last TAPS - 1 tokens of each sequence. Grid: C / BC, B. Sequences without tokens keep their state.
    `certain_B`: how many tokens of a sequence are no proposals, which are left out; None: all.

    A lane writes the tokens of a channel in order. A token that was in the state moves to an earlier place, so it is
    read before its place is written. dtypes: x and state float32, bfloat16 or float16; fields int64.
    PADDING: the state's row for padding, which is not written. Bytes: the state is written once, x and the state are
    read once together. No operations.
    """
    let_next_start(EARLY)
    wait_for_last(EARLY)
    b = tl.program_id(1)
    c = tl.program_id(0) * BC + tl.arange(0, BC)
    first, count = tokens_of(starts, b)
    row = tl.load(rows_B + b)
    owned = (c < C) & (row != PADDING) & (count > 0)
    began = tl.load(lengths_B + b) > count
    stored = count
    if certain_B is not None:
        stored = tl.load(certain_B + b)
    place = state_RTC + row * S_ROW + c
    for t in range(TAPS - 1):
        at = stored - (TAPS - 1) + t
        x = tl.load(x_NC + (first + at) * X_ROW + c, mask=owned & (at >= 0), other=0.0)
        before = tl.load(place + (t + stored) * S_TAP, mask=owned & (at < 0) & began, other=0.0)
        value = tl.where(at >= 0, x.to(state_RTC.dtype.element_ty), before)
        tl.store(place + t * S_TAP, value, mask=owned)
