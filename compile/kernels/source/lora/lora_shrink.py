"""The product of rows of activations with the A of their LoRAs: x · Aᵀ."""

import triton
import triton.language as tl

from bringup.compile.kernels.source.launches import let_next_start, wait_for_last
from bringup.compile.kernels.source.lora.chosen import factors_of, slot_of


@triton.jit
def lora_shrink(
    x, a, slots, starts, expert, out,
    R: tl.constexpr, K: tl.constexpr, B: tl.constexpr, ENDS: tl.constexpr, X_ROW: tl.constexpr, ROWS: tl.constexpr,
    SLOT: tl.constexpr, EXPERT: tl.constexpr, RANKS: tl.constexpr, BK: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """out[n, r] = x[n] · a[slot, expert, r]; 0 for a row without a LoRA. Grid: R / RANKS, rows.

    dtypes: x and a float32, bfloat16 or float16; sums in float32; slots, starts and expert int64. a: [slots, experts,
    R, K]. Bytes: the A of each row's LoRA, x once for each program. Operations: 2 for each of these elements of A.
    """
    let_next_start(EARLY)
    wait_for_last(EARLY)
    n = tl.program_id(1)
    r = tl.program_id(0) * RANKS + tl.arange(0, RANKS)[:, None]
    slot = slot_of(slots, starts, n, B, ENDS)
    rows = a + factors_of(slot, expert, n, ROWS, SLOT, EXPERT) + r * K
    live = (r < R) & (slot >= 0)
    total = tl.zeros((RANKS, BK), tl.float32)
    for k in range(0, K, BK):
        at = k + tl.arange(0, BK)[None, :]
        weights = tl.load(rows + at, mask=live & (at < K), other=0.0).to(tl.float32)
        given = tl.load(x + n.to(tl.int64) * X_ROW + at, mask=(at < K) & (slot >= 0), other=0.0).to(tl.float32)
        total += weights * given
    h = tl.sum(total, 1, keep_dims=True)
    tl.store(out + n.to(tl.int64) * R + r, h.to(out.dtype.element_ty), mask=r < R)
