"""The product of h = x · Aᵀ with the B of each row's LoRA, added to a row of y."""

import triton
import triton.language as tl

from bringup.compile.kernels.source.launches import let_next_start, wait_for_last
from bringup.compile.kernels.source.lora.chosen import factors_of, slot_of


@triton.jit
def lora_expand(
    h, b, slots, starts, expert, y, out,
    R: tl.constexpr, C: tl.constexpr, B: tl.constexpr, ENDS: tl.constexpr, H_ROW: tl.constexpr, Y_ROW: tl.constexpr,
    ROWS: tl.constexpr, SLOT: tl.constexpr, EXPERT: tl.constexpr, RANKS: tl.constexpr, BN: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """out[n] = y[n] + h[n] · b[slot, expert]; y[n] for a row without a LoRA. y may be None for zeros.

    Grid: C / BN, rows. dtypes: h, b and y float32, bfloat16 or float16; sums in float32; slots, starts and expert
    int64. b: [slots, experts, R, C]. RANKS: R, rounded up to a power of two. The product is rounded before it is added.
    Bytes: the B of each row's LoRA, y and out once, h once for each program. Operations: 2 for each of these elements
    of B.
    """
    let_next_start(EARLY)
    wait_for_last(EARLY)
    n = tl.program_id(1)
    r = tl.arange(0, RANKS)[:, None]
    o = tl.program_id(0) * BN + tl.arange(0, BN)[None, :]
    slot = slot_of(slots, starts, n, B, ENDS)
    live = (r < R) & (slot >= 0)
    given = tl.load(h + n.to(tl.int64) * H_ROW + r, mask=live, other=0.0).to(tl.float32)
    at = factors_of(slot, expert, n, ROWS, SLOT, EXPERT) + r.to(tl.int64) * C + o
    weights = tl.load(b + at, mask=live & (o < C), other=0.0).to(tl.float32)
    value = tl.sum(given * weights, 0, keep_dims=True).to(out.dtype.element_ty)
    if y is not None:
        before = tl.load(y + n.to(tl.int64) * Y_ROW + o, mask=o < C, other=0.0).to(tl.float32)
        value = (before + value.to(tl.float32)).to(out.dtype.element_ty)
    tl.store(out + n.to(tl.int64) * C + o, value, mask=o < C)
