"""A mask from the positions of its true elements, which are in order: each key searches for itself."""

from __future__ import annotations

import triton
import triton.language as tl

from bringup.compile.kernels.source.launches import let_next_start, wait_for_last


@triton.jit
def marked_keys(
    positions_NK, out_NL,
    L: tl.constexpr, K: tl.constexpr, STEPS: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """out [N, L] is true for the keys at the positions of the row. Grid: rows, tiles of BLOCK keys.

    A binary search in STEPS steps: `below` is a number of positions before the key, at last of all of them.
    """
    let_next_start(EARLY)
    wait_for_last(EARLY)
    row = tl.program_id(0).to(tl.int64)
    key = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    below = tl.zeros((BLOCK,), tl.int32)
    for step in tl.static_range(STEPS):
        probe = below + (1 << (STEPS - 1 - step))
        other = tl.load(positions_NK + row * K + probe - 1, mask=probe <= K, other=L)
        below = tl.where((probe <= K) & (other < key), probe, below)
    found = tl.load(positions_NK + row * K + below, mask=below < K, other=L)
    tl.store(out_NL + row * L + key, found == key, mask=key < L)
