"""Look-up of columns of A, for LoRAs of an embedding."""

import triton
import triton.language as tl

from bringup.compile.kernels.source.launches import let_next_start, wait_for_last
from bringup.compile.kernels.source.lora.chosen import factors_of, slot_of


@triton.jit
def lora_lookup(
    rows, a, slots, starts, out,
    R: tl.constexpr, V: tl.constexpr, B: tl.constexpr, ENDS: tl.constexpr, SLOT: tl.constexpr, RANKS: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """out[n, r] = a[slot, r, rows[n]]; 0 for a row without a LoRA. Grid: rows.

    dtypes: a and out have one; rows, slots and starts int64. a: [slots, R, V]. RANKS: R, rounded up to a power of two.
    Bytes: R elements of A for each row, which are V apart. No operations.
    """
    let_next_start(EARLY)
    wait_for_last(EARLY)
    n = tl.program_id(0)
    r = tl.arange(0, RANKS)
    slot = slot_of(slots, starts, n, B, ENDS)
    at = factors_of(slot, None, n, 1, SLOT, 0) + r.to(tl.int64) * V + tl.load(rows + n)
    value = tl.load(a + at, mask=(r < R) & (slot >= 0), other=0.0)
    tl.store(out + n.to(tl.int64) * R + r, value, mask=r < R)
