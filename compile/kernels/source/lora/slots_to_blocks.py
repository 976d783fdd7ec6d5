"""The slot of the LoRA of each row, for rows sorted into blocks of one expert each."""

import triton
import triton.language as tl

from bringup.compile.kernels.source.launches import let_next_start, wait_for_last


@triton.jit
def slots_to_blocks(
    slot, row, out,
    F: tl.constexpr, SHARE: tl.constexpr, STRIDE: tl.constexpr, R: tl.constexpr, PR: tl.constexpr, CHUNK: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """out[b, r] = slot[f // SHARE] for the choice f with row[f] = b · R + r; -1 if there is none. Grid: blocks.

    dtypes: int64. F choices, SHARE for each token. PR: R, rounded up to a power of two. Bytes: every choice once for
    each block. Operations: a comparison for each choice and row.
    """
    let_next_start(EARLY)
    wait_for_last(EARLY)
    b = tl.program_id(0)
    r = tl.arange(0, PR)[:, None]
    found = tl.full((PR, 1), -1, tl.int64)
    for f in range(0, F, CHUNK):
        at = f + tl.arange(0, CHUNK)[None, :]
        same = (tl.load(row + at, mask=at < F, other=-1) == b * R + r) & (at < F)
        of_choice = tl.load(slot + at // SHARE * STRIDE, mask=at < F, other=-1)
        found = tl.maximum(found, tl.max(tl.where(same, of_choice, -1), 1, keep_dims=True))
    tl.store(out + b.to(tl.int64) * R + r, found, mask=r < R)
