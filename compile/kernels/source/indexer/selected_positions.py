"""The positions of the true elements of each row of a mask, in order."""

from __future__ import annotations

import triton
import triton.language as tl

from bringup.compile.kernels.source.launches import let_next_start, wait_for_last


@triton.jit
def selected_positions(
    selected_NL, positions_N, out_NK,
    L: tl.constexpr, ROW: tl.constexpr, COUNT: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """out [N, COUNT] has the selected keys up to the row's position, then L. Grid: rows.

    Keys after the first COUNT are not written. The loops are over tiles of BLOCK elements.
    """
    let_next_start(EARLY)
    wait_for_last(EARLY)
    row = tl.program_id(0).to(tl.int64)
    seen = tl.minimum(tl.load(positions_N + row).to(tl.int32) + 1, L)
    at = tl.arange(0, BLOCK)
    before = tl.full((), 0, tl.int32)
    for start in range(0, seen, BLOCK):
        is_seen = start + at < seen
        is_key = (tl.load(selected_NL + row * ROW + start + at, mask=is_seen, other=0) != 0) & is_seen
        place = before + tl.cumsum(is_key.to(tl.int32), 0) - 1
        tl.store(out_NK + row * COUNT + place, (start + at).to(tl.int64), mask=is_key & (place < COUNT))
        before += tl.sum(is_key.to(tl.int32), 0)
    for start in range(0, COUNT, BLOCK):
        is_rest = (start + at >= before) & (start + at < COUNT)
        tl.store(out_NK + row * COUNT + start + at, tl.full((BLOCK,), L, tl.int64), mask=is_rest)
