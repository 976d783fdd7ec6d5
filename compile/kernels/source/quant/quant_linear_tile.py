"""A product of two matrices, one of them packed, with the norm before it and an epilogue."""

import triton
import triton.language as tl

from bringup.compile.kernels.source import generated  # noqa: F401  what the functions are written in: part of the key
from bringup.compile.kernels.source.launches import let_next_start, wait_for_last
from bringup.compile.kernels.source.products import affine, normed, statistics, tile_of


@triton.jit
def quant_linear_tile(
    x, expert, scale, shift,
    p0, p1, p2, p3, p4, p5, p6, p7, p8, p9, p10, p11, p12, p13, p14, p15, p16, p17, p18, p19,
    COLUMNS: tl.constexpr, WEIGHT0: tl.constexpr, WEIGHT1: tl.constexpr, EPILOGUE: tl.constexpr, PAIR: tl.constexpr,
    M: tl.constexpr, LANES: tl.constexpr, K: tl.constexpr, X_STRIDE: tl.constexpr,
    NORM: tl.constexpr, EPS: tl.constexpr, OFFSET: tl.constexpr, ROUND_LAST: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, WORD: tl.constexpr, BK: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """A tile of BM rows: EPILOGUE of norm(x) · weight[columns], and of a second weight too if PAIR.

    Grid: tiles, blocks. dtypes: x float32, bfloat16 or float16; sums in float32. WEIGHT0 and WEIGHT1 return dequantised
    elements of the weights, from arrays among p0, …. If `expert` is not None, block b of x, its M rows from b · M, uses
    the weights of expert[b]. COLUMNS returns the columns for a lane; WORD adjacent lanes share the words of the first.
    Bytes: codes and scales once for every BM rows, x once for every BN lanes. Operations: 2 for each weight and row.
    """
    let_next_start(EARLY)
    wait_for_last(EARLY)
    top, begin = tile_of(tl.program_id(0), M, LANES, BM, BN)
    first = begin + tl.arange(0, BN // WORD)[None, :, None] * WORD
    lanes = first + tl.arange(0, WORD)[None, None, :]
    rows = top + tl.arange(0, BM)[:, None]
    b = tl.program_id(1)
    c0, c1 = COLUMNS(lanes)  # -1 for a lane without columns
    g0, g1 = COLUMNS(first)
    c0, c1 = tl.maximum(tl.where(lanes < LANES, c0, 0), 0), tl.maximum(tl.where(lanes < LANES, c1, 0), 0)
    g0, g1 = tl.maximum(tl.where(first < LANES, g0, 0), 0), tl.maximum(tl.where(first < LANES, g1, 0), 0)
    e = b
    if expert is not None:
        e = tl.load(expert + b).to(tl.int32)
        x += b.to(tl.int64) * M * X_STRIDE
    near = rows.to(tl.int64)
    if NORM != "":
        mean, factor = statistics(x, near, rows < M, K, X_STRIDE, BK, NORM, EPS)
    acc0 = tl.zeros((BM, BN), tl.float32)
    acc1 = tl.zeros((BM, BN), tl.float32)
    xs = x + near * X_STRIDE
    for k in range(0, K, BK):
        at = k + tl.arange(0, BK)
        deep = at[:, None, None]
        a = tl.load(xs + at[None, :], mask=(rows < M) & (at[None, :] < K), other=0.0)
        v0 = WEIGHT0(e, c0, g0, deep, k, deep < K, k < K,
                     p0, p1, p2, p3, p4, p5, p6, p7, p8, p9,
                     p10, p11, p12, p13, p14, p15, p16, p17, p18, p19)  # fmt: skip
        v0 = tl.reshape(v0, (BK, BN)).to(x.dtype.element_ty)
        if PAIR:
            v1 = WEIGHT1(e, c1, g1, deep, k, deep < K, k < K,
                         p0, p1, p2, p3, p4, p5, p6, p7, p8, p9,
                         p10, p11, p12, p13, p14, p15, p16, p17, p18, p19)  # fmt: skip
            v1 = tl.reshape(v1, (BK, BN)).to(x.dtype.element_ty)
        if NORM != "":
            by, plus = affine(scale, shift, at[None, :], K, NORM)
            n = normed(a.to(tl.float32), mean, factor, by, plus, (rows < M) & (at[None, :] < K),
                       NORM, OFFSET, ROUND_LAST, x.dtype.element_ty)  # fmt: skip
            a = n.to(x.dtype.element_ty)
        acc0 = tl.dot(a, v0, acc0, input_precision="ieee")
        if PAIR:
            acc1 = tl.dot(a, v1, acc1, input_precision="ieee")
    lane = begin + tl.arange(0, BN)[None, :]
    c0, c1 = COLUMNS(lane)
    live = (lane < LANES) & (c0 >= 0)
    row = tl.broadcast_to(rows, (BM, BN))
    EPILOGUE(acc0, acc1, row, tl.broadcast_to(lane, (BM, BN)), (row < M) & live, b, begin,
             p0, p1, p2, p3, p4, p5, p6, p7, p8, p9, p10, p11, p12, p13, p14, p15, p16, p17, p18, p19)  # fmt: skip
