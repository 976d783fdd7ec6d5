"""Copies the rows of tokens to blocks of one expert each."""

import triton
import triton.language as tl

from bringup.compile.kernels.source.launches import let_next_start, wait_for_last


@triton.jit
def to_blocks(
    x, row, out,
    F: tl.constexpr, SHARE: tl.constexpr, R: tl.constexpr, K: tl.constexpr, X_STRIDE: tl.constexpr,
    PR: tl.constexpr, CHUNK: tl.constexpr, BK: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """out[b, r] = x[f // SHARE] for the choice f with row[f] = b · R + r; 0 if there is none. Grid: blocks.

    dtypes: any for x; row int64. F choices, SHARE for each token; rows of K channels. PR: R, rounded up to a power of
    two. Bytes: every choice once for each block, each row of x once for each of its copies, the result once.
    Operations: a comparison for each choice and row.
    """
    let_next_start(EARLY)
    wait_for_last(EARLY)
    b = tl.program_id(0)
    r = tl.arange(0, PR)[:, None]
    token = tl.full((PR, 1), -1, tl.int32)
    for f in range(0, F, CHUNK):
        at = f + tl.arange(0, CHUNK)[None, :]
        places = tl.load(row + at, mask=at < F, other=-1)
        same = places == (b * R + r)
        token = tl.maximum(token, tl.max(tl.where(same & (at < F), at // SHARE, -1), 1, keep_dims=True))
    for k in range(0, K, BK):
        at = k + tl.arange(0, BK)[None, :]
        inside = (r < R) & (at < K)
        value = tl.load(x + token.to(tl.int64) * X_STRIDE + at, mask=inside & (token >= 0), other=0.0)
        tl.store(out + (b.to(tl.int64) * R + r) * K + at, value, mask=inside)
