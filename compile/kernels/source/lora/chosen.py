"""Whose LoRA a row has."""

import triton
import triton.language as tl


@triton.jit
def slot_of(slots, starts, n, B: tl.constexpr, ENDS: tl.constexpr):
    """The slot of row n, below 0 for none: that of its sequence where there are `starts` [B + 1], and else its own.

    ENDS: B as a power of two. Padding, which comes after the last sequence, has none.
    """
    at = n
    if starts is not None:
        b = tl.arange(0, ENDS)
        ends = tl.load(starts + 1 + b, mask=b < B, other=9223372036854775807)
        at = tl.sum((ends <= n).to(tl.int32), 0)
        return tl.load(slots + at, mask=at < B, other=-1)
    return tl.load(slots + at)


@triton.jit
def factors_of(slot, expert, n, ROWS: tl.constexpr, SLOT: tl.constexpr, EXPERT: tl.constexpr):
    """How many elements lie before a row's factors: slots are SLOT apart, experts EXPERT, and ROWS rows have one."""
    at = tl.maximum(slot, 0).to(tl.int64) * SLOT
    if expert is not None:
        at += tl.load(expert + n // ROWS).to(tl.int64) * EXPERT
    return at
