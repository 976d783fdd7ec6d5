"""The slot of a row's LoRA, and the offset of its factors."""

import triton
import triton.language as tl


@triton.jit
def slot_of(slots, starts, n, B: tl.constexpr, ENDS: tl.constexpr):
    """The slot of row n, negative if it has no LoRA.

    `slots` is [B], for the sequences that begin at the rows `starts` [B + 1]; if `starts` is None, `slots` has one for
    each row. ENDS: B, rounded up to a power of two. Padding, which follows the last sequence, has no LoRA.
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
    """The offset of row n's factors in elements. SLOT and EXPERT are strides; ROWS consecutive rows share an expert."""
    at = tl.maximum(slot, 0).to(tl.int64) * SLOT
    if expert is not None:
        at += tl.load(expert + n // ROWS).to(tl.int64) * EXPERT
    return at
