"""A product of one row and a matrix, with the norm before it and what is done to its result."""

import triton
import triton.language as tl

from bringup.compile.kernels.source import generated  # noqa: F401  what the functions are written in: part of the key
from bringup.compile.kernels.source.products import normed, statistics


@triton.jit
def linear(
    x, w0, w1, expert, scale, shift,
    p0, p1, p2, p3, p4, p5, p6, p7, p8, p9, p10, p11, p12, p13, p14, p15, p16, p17, p18, p19,
    COLUMNS: tl.constexpr, EPILOGUE: tl.constexpr, PAIR: tl.constexpr,
    LANES: tl.constexpr, K: tl.constexpr, SHARE: tl.constexpr, X_STRIDE: tl.constexpr, W_STRIDE: tl.constexpr,
    E_STRIDE: tl.constexpr, NORM: tl.constexpr, EPS: tl.constexpr, OFFSET: tl.constexpr, ROUND_LAST: tl.constexpr,
    BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Row b of a result: EPILOGUE of norm(x[b // SHARE]) · w0[columns], and of w1's with PAIR. Grid: lanes / BN, rows.

    dtypes: x and weights float32, bfloat16 or float16; sums in float32. w: [columns, K] with rows W_STRIDE apart, of
    the matrix expert[b] (E_STRIDE apart) where there is one. COLUMNS gives the rows of w0 and w1 for a lane.
    Bytes: each weight once, x once for each program. Operations: 2 for each weight.
    """
    lane = tl.program_id(0) * BN + tl.arange(0, BN)
    live = lane < LANES
    b = tl.program_id(1)
    c0, c1 = COLUMNS(lane)  # -1 for a lane without columns
    live = live & (c0 >= 0)
    x += (b // SHARE).to(tl.int64) * X_STRIDE
    if expert is not None:
        e = tl.load(expert + b).to(tl.int64) * E_STRIDE
        w0 += e
        if PAIR:
            w1 += e
    one = tl.zeros((1, 1), tl.int32)
    if NORM != "":
        mean, factor = statistics(x, one, one == 0, K, 0, BK, NORM, EPS)
    acc0 = tl.zeros((BN, BK), tl.float32)
    acc1 = tl.zeros((BN, BK), tl.float32)
    r0 = w0 + c0[:, None].to(tl.int64) * W_STRIDE
    r1 = w0 + c1[:, None].to(tl.int64) * W_STRIDE
    if PAIR:
        r1 = w1 + c1[:, None].to(tl.int64) * W_STRIDE
    for k in range(0, K, BK):
        at = k + tl.arange(0, BK)[None, :]
        m = live[:, None] & (at < K)
        v0 = tl.load(r0 + at, mask=m, other=0.0, eviction_policy="evict_first").to(tl.float32)
        if PAIR:
            v1 = tl.load(r1 + at, mask=m, other=0.0, eviction_policy="evict_first").to(tl.float32)
        a = tl.load(x + at, mask=at < K, other=0.0).to(tl.float32)
        if NORM != "":
            a = normed(a, mean, factor, scale, shift, at, at < K, K, NORM, OFFSET, ROUND_LAST, x.dtype.element_ty)
        acc0 += v0 * a
        if PAIR:
            acc1 += v1 * a
    y0 = tl.sum(acc0, 1)[None, :]
    y1 = y0
    if PAIR:
        y1 = tl.sum(acc1, 1)[None, :]
    row = tl.zeros((1, BN), tl.int32)
    EPILOGUE(y0, y1, row, lane[None, :], live[None, :], b,
             p0, p1, p2, p3, p4, p5, p6, p7, p8, p9, p10, p11, p12, p13, p14, p15, p16, p17, p18, p19)  # fmt: skip
