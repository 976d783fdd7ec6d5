"""The largest logit of each row, with its token: what greedy sampling returns, and what other sampling starts from."""

from __future__ import annotations

import triton
import triton.language as tl

from bringup.compile.kernels.source.arithmetic import ordered
from bringup.compile.kernels.source.launches import let_next_start, wait_for_last


@triton.jit
def keep_largest(best_BS, logits, row, token, live, part, SLOTS: tl.constexpr):
    """Keeps the largest logit of each row of a tile [R, C] in one of the SLOTS of that row, chosen by `part`.

    `best_BS` int64, 0 before the first tile: the order of the logit above the token, which counts down: equal logits
    give the lowest token. Order and token have 63 bits, so no value is negative. Programs share a slot, so the number
    of slots is small for any vocabulary.
    """
    order = ordered(logits).to(tl.int64)
    best = tl.max(tl.where(live, (order << 31) | (2147483647 - token), 0), 1)
    slot = tl.max(row, 1).to(tl.int64) * SLOTS + part % SLOTS
    tl.atomic_max(best_BS + slot, best, mask=best > 0, sem="relaxed")


@triton.jit
def largest(logits_BV, best_BS, V: tl.constexpr, SLOTS: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr):
    """Grid [ceil(V / BLOCK), B]: keeps the largest logit of each row where the launch that computes it does not."""
    let_next_start(EARLY)
    wait_for_last(EARLY)
    part = tl.program_id(0)
    token = part * BLOCK + tl.arange(0, BLOCK)[None, :]
    row = tl.full((1, BLOCK), 0, tl.int32) + tl.program_id(1)
    logits = tl.load(logits_BV + row.to(tl.int64) * V + token, mask=token < V, other=0.0).to(tl.float32)
    keep_largest(best_BS, logits, row, token, token < V, part, SLOTS)
