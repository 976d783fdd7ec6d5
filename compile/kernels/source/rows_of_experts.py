"""The assignment of tokens' rows to blocks of one expert each, in a mixture of experts."""

import triton
import triton.language as tl

from bringup.compile.kernels.source.launches import let_next_start, wait_for_last


@triton.jit
def rows_of_experts(
    chosen, expert, row,
    F: tl.constexpr, E: tl.constexpr, R: tl.constexpr, B: tl.constexpr,
    PE: tl.constexpr, CHUNK: tl.constexpr, BLOCKS: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """expert [B]: the expert of each block of R rows; row [F]: the row of each choice. See `graphs.ops.moe_experts`.

    dtypes: int64. One program. `chosen` [F]: the selected experts of tokens, in order. E experts; PE: E, rounded up to
    a power of two. Bytes: the choices twice, the results once. Operations: two comparisons for each choice and expert.
    """
    let_next_start(EARLY)
    wait_for_last(EARLY)
    e = tl.arange(0, PE)[None, :]
    total = tl.zeros((1, PE), tl.int32)
    for f in range(0, F, CHUNK):
        at = f + tl.arange(0, CHUNK)[:, None]
        own = (tl.load(chosen + at, mask=at < F, other=-1).to(tl.int32) == e).to(tl.int32)
        total += tl.sum(own, 0, keep_dims=True)
    blocks = tl.where(e < E, (total + R - 1) // R, 0)
    last = tl.cumsum(blocks, 1)
    first = (last - blocks) * R
    for b in range(0, B, BLOCKS):
        at = b + tl.arange(0, BLOCKS)[:, None]
        after = tl.sum(((at >= last) & (e < E)).to(tl.int32), 1, keep_dims=True)
        tl.store(expert + at, tl.minimum(after, E - 1).to(tl.int64), mask=at < B)
    before = first
    for f in range(0, F, CHUNK):
        at = f + tl.arange(0, CHUNK)[:, None]
        own = (tl.load(chosen + at, mask=at < F, other=-1).to(tl.int32) == e).to(tl.int32)
        place = tl.sum(own * (before + tl.cumsum(own, 0) - 1), 1, keep_dims=True)
        tl.store(row + at, place.to(tl.int64), mask=at < F)
        before += tl.sum(own, 0, keep_dims=True)
