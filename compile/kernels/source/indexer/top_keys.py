"""Selects the keys with the highest scores of each row. The lowest of these scores is searched for bit by bit."""

from __future__ import annotations

import triton
import triton.language as tl

from bringup.compile.kernels.source.arithmetic import ordered
from bringup.compile.kernels.source.launches import let_next_start, wait_for_last


@triton.jit
def top_keys(
    scores_NL, positions_N, out_NL,
    L: tl.constexpr, ROW: tl.constexpr, COUNT: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """out [N, L] is true for the COUNT keys with the highest scores among those up to the row's position. Grid: rows.

    Among equal scores the first keys are selected. If there are fewer than COUNT keys, all are selected. The loops are
    over tiles of BLOCK keys.
    """
    let_next_start(EARLY)
    wait_for_last(EARLY)
    row = tl.program_id(0).to(tl.int64)
    seen = tl.minimum(tl.load(positions_N + row).to(tl.int32) + 1, L)
    at = tl.arange(0, BLOCK)
    worst = tl.full((), 0, tl.uint32)  # the largest number that COUNT scores, or more, are not below
    for bit in range(32):
        candidate = worst | (tl.full((), 0x80000000, tl.uint32) >> bit)
        found = tl.zeros((BLOCK,), tl.int32)
        for start in range(0, seen, BLOCK):
            is_key = start + at < seen
            order = ordered(tl.load(scores_NL + row * ROW + start + at, mask=is_key, other=0.0).to(tl.float32))
            found += (is_key & (order >= candidate)).to(tl.int32)
        worst = tl.where(tl.sum(found, 0) >= COUNT, candidate, worst)
    above = tl.zeros((BLOCK,), tl.int32)
    for start in range(0, seen, BLOCK):
        is_key = start + at < seen
        order = ordered(tl.load(scores_NL + row * ROW + start + at, mask=is_key, other=0.0).to(tl.float32))
        above += (is_key & (order > worst)).to(tl.int32)
    room = COUNT - tl.sum(above, 0)
    for start in range(0, L, BLOCK):
        is_key = start + at < seen
        order = ordered(tl.load(scores_NL + row * ROW + start + at, mask=is_key, other=0.0).to(tl.float32))
        tied = (is_key & (order == worst)).to(tl.int32)
        chosen = is_key & ((order > worst) | ((tied != 0) & (tl.cumsum(tied, 0) <= room)))
        tl.store(out_NL + row * L + start + at, chosen, mask=start + at < L)
        room -= tl.sum(tied, 0)
