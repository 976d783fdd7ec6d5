"""The states of convolutions after a step."""

import triton
import triton.language as tl

from bringup.compile.kernels.source.launches import let_next_start, wait_for_last
from bringup.compile.kernels.source.recurrent.sequence import tokens_of


@triton.jit
def conv_state(
    x_NC, state_RTC, starts, rows, lengths,
    C: tl.constexpr, T: tl.constexpr, X_ROW: tl.constexpr, CHANNELS: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """The last T tokens of each sequence, some of which may be in the state already.

    Grid: ceil(C / CHANNELS), B. A lane has one channel, and reads a row before it overwrites it.
    """
    let_next_start(EARLY)
    wait_for_last(EARLY)
    c = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    is_channel = c < C
    first, count, row, is_new = tokens_of(tl.program_id(1), starts, rows, lengths)
    if count <= 0:
        return
    state = state_RTC + row * (T * C) + c
    for j in tl.static_range(T):
        from_start = count + (j - T)
        given = tl.load(x_NC + (first + from_start) * X_ROW + c, mask=is_channel & (from_start >= 0), other=0.0)
        is_kept = is_channel & (from_start < 0) & (is_new == 0)
        kept = tl.load(state + (from_start + T) * C, mask=is_kept, other=0.0)
        tl.store(state + j * C, tl.where(from_start >= 0, given, kept), mask=is_channel)
