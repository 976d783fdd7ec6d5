"""The largest logit of each part of a row, with its token: what greedy sampling combines."""

from __future__ import annotations

import triton
import triton.language as tl

from bringup.compile.kernels.source.arithmetic import ordered
from bringup.compile.kernels.source.launches import let_next_start, wait_for_last


@triton.jit
def largest(logits_BV, best_BP, V: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr):
    """Grid [P, B]. `best_BP` int64: the order of the logit above the token, which counts down: equal logits give the
    lowest token."""
    let_next_start(EARLY)
    wait_for_last(EARLY)
    part = tl.program_id(0)
    row = tl.program_id(1).to(tl.int64)
    token = part * BLOCK + tl.arange(0, BLOCK)
    logits = tl.load(logits_BV + row * V + token, mask=token < V, other=-float("inf")).to(tl.float32)
    order = tl.where(token < V, ordered(logits), 0)
    top = tl.max(order, 0)
    first = tl.min(tl.where(order == top, token, 2147483647), 0)
    best = (top.to(tl.uint64) << 32) | (2147483647 - first).to(tl.uint64)
    tl.store(best_BP + row * tl.num_programs(0) + part, best.to(tl.int64, bitcast=True))
