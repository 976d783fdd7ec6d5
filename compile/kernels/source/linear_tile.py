"""A product of two matrices, with the norm before it and an epilogue."""

import triton
import triton.language as tl

from bringup.compile.kernels.source import generated  # noqa: F401  what the functions are written in: part of the key
from bringup.compile.kernels.source.launches import let_next_start, wait_for_last
from bringup.compile.kernels.source.products import affine, normed, statistics, tile_of


@triton.jit
def linear_tile(
    x, w0, w1, expert, scale, shift,
    p0, p1, p2, p3, p4, p5, p6, p7, p8, p9, p10, p11, p12, p13, p14, p15, p16, p17, p18, p19,
    COLUMNS: tl.constexpr, EPILOGUE: tl.constexpr, PAIR: tl.constexpr,
    M: tl.constexpr, LANES: tl.constexpr, K: tl.constexpr, X_STRIDE: tl.constexpr, W_STRIDE: tl.constexpr,
    E_STRIDE: tl.constexpr, NORM: tl.constexpr, EPS: tl.constexpr, OFFSET: tl.constexpr, ROUND_LAST: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """A tile of BM rows: EPILOGUE of norm(x) · w0[columns], and of w1 too if PAIR. Grid: tiles, blocks.

    dtypes: x and weights float32, bfloat16 or float16; sums in float32. w: [columns, K] with rows W_STRIDE apart; if
    `expert` is not None, matrices are E_STRIDE apart, and block b of x, its M rows from b · M, uses matrix expert[b].
    Bytes: each weight once for every BM rows, x once for every BN lanes. Operations: 2 for each weight and row.
    """
    let_next_start(EARLY)
    wait_for_last(EARLY)
    top, first = tile_of(tl.program_id(0), M, LANES, BM, BN)
    lane = first + tl.arange(0, BN)
    live = lane < LANES
    rows = top + tl.arange(0, BM)[:, None]
    b = tl.program_id(1)
    c0, c1 = COLUMNS(lane)  # -1 for a lane without columns
    live = live & (c0 >= 0)
    if expert is not None:
        e = tl.load(expert + b).to(tl.int64) * E_STRIDE
        w0 += e
        if PAIR:
            w1 += e
        x += b.to(tl.int64) * M * X_STRIDE
    near = rows.to(tl.int64)
    if NORM != "":
        mean, factor = statistics(x, near, rows < M, K, X_STRIDE, BK, NORM, EPS)
    acc0 = tl.zeros((BM, BN), tl.float32)
    acc1 = tl.zeros((BM, BN), tl.float32)
    r0 = w0 + c0[None, :].to(tl.int64) * W_STRIDE
    r1 = r0
    if PAIR:
        r1 = w1 + c1[None, :].to(tl.int64) * W_STRIDE
    xs = x + near * X_STRIDE
    for k in range(0, K, BK):
        at = k + tl.arange(0, BK)
        a = tl.load(xs + at[None, :], mask=(rows < M) & (at[None, :] < K), other=0.0)
        m = live[None, :] & (at[:, None] < K)
        v0 = tl.load(r0 + at[:, None], mask=m, other=0.0)
        if PAIR:
            v1 = tl.load(r1 + at[:, None], mask=m, other=0.0)
        if NORM != "":
            by, plus = affine(scale, shift, at[None, :], K, NORM)
            n = normed(a.to(tl.float32), mean, factor, by, plus, (rows < M) & (at[None, :] < K),
                       NORM, OFFSET, ROUND_LAST, x.dtype.element_ty)  # fmt: skip
            a = n.to(x.dtype.element_ty)
        acc0 = tl.dot(a, v0, acc0, input_precision="ieee")
        if PAIR:
            acc1 = tl.dot(a, v1, acc1, input_precision="ieee")
    row = tl.broadcast_to(rows, (BM, BN))
    EPILOGUE(acc0, acc1, row, tl.broadcast_to(lane[None, :], (BM, BN)), (row < M) & live[None, :], b, first,
             p0, p1, p2, p3, p4, p5, p6, p7, p8, p9, p10, p11, p12, p13, p14, p15, p16, p17, p18, p19)  # fmt: skip
