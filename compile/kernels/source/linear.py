"""A product of one row and a matrix, with the norm before it and an epilogue."""

import triton
import triton.language as tl

from bringup.compile.kernels.source import generated  # noqa: F401  what the functions are written in: part of the key
from bringup.compile.kernels.source.launches import let_next_start, wait_for_last
from bringup.compile.kernels.source.products import affine, normed, statistics, statistics_of


@triton.jit
def weights_at(row, at, live, K: tl.constexpr):
    """A tile of weights in their stored dtype, 0 past the end. Each is read only once, so it is evicted first."""
    return tl.load(row + at, mask=live[:, None] & (at < K), other=0.0, eviction_policy="evict_first")


@triton.jit
def tiles_of(row, live, K: tl.constexpr, BK: tl.constexpr, TILES: tl.constexpr):
    """The first TILES adjacent tiles of weights, as a tuple."""
    tiles = ()
    for number in tl.static_range(TILES):
        tiles += (weights_at(row, number * BK + tl.arange(0, BK)[None, :], live, K),)
    return tiles


@triton.jit
def products(weights, x, BN: tl.constexpr, BK: tl.constexpr, EACH: tl.constexpr):
    """Products [BN, BK / EACH] of a tile of weights and a row. EACH adjacent channels are summed in one thread."""
    each = weights.to(tl.float32) * x
    if EACH > 1:
        each = tl.sum(tl.reshape(each, (BN, BK // EACH, EACH)), 2)
    return each


@triton.jit
def linear(
    x, w0, w1, expert, scale, shift,
    p0, p1, p2, p3, p4, p5, p6, p7, p8, p9, p10, p11, p12, p13, p14, p15, p16, p17, p18, p19,
    COLUMNS: tl.constexpr, EPILOGUE: tl.constexpr, PAIR: tl.constexpr,
    LANES: tl.constexpr, K: tl.constexpr, SHARE: tl.constexpr, X_STRIDE: tl.constexpr, W_STRIDE: tl.constexpr,
    E_STRIDE: tl.constexpr, NORM: tl.constexpr, EPS: tl.constexpr, OFFSET: tl.constexpr, ROUND_LAST: tl.constexpr,
    BN: tl.constexpr, BK: tl.constexpr, TILES: tl.constexpr, ROWS: tl.constexpr, EACH: tl.constexpr,
    KNOWN: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Row b of a result: EPILOGUE of norm(x[b // SHARE]) · w0[columns], and of w1 too if PAIR. Grid: lanes / BN, rows.

    dtypes: x and weights float32, bfloat16 or float16; sums in float32. w: [columns, K] with rows W_STRIDE apart; if
    `expert` is not None, matrices are E_STRIDE apart, and row b uses matrix expert[b]. COLUMNS returns the rows of w0
    and w1 for a lane, -1 for none. Weights are fetched one tile ahead. KNOWN: no launch writes the weights, so the
    first tile is fetched before the wait. Bytes: each weight once, x once for each program. Operations: 2 for each
    weight.
    """
    let_next_start(EARLY)
    lane = tl.program_id(0) * BN + tl.arange(0, BN)
    b = tl.program_id(1)
    c0, c1 = COLUMNS(lane)  # -1 for a lane without columns
    live = (lane < LANES) & (c0 >= 0)
    if not KNOWN:
        wait_for_last(EARLY)
    if expert is not None:
        e = tl.load(expert + b).to(tl.int64) * E_STRIDE
        w0 += e
        if PAIR:
            w1 += e
    at = tl.arange(0, BK)[None, :]
    r0 = w0 + c0[:, None].to(tl.int64) * W_STRIDE
    first0 = tiles_of(r0, live, K, BK, TILES)
    if PAIR:
        r1 = w1 + c1[:, None].to(tl.int64) * W_STRIDE
        first1 = tiles_of(r1, live, K, BK, TILES)
    if NORM != "":
        norms = ()
        for number in tl.static_range(TILES):
            norms += (affine(scale, shift, number * BK + at + tl.zeros((ROWS, 1), tl.int32), K, NORM),)
    if KNOWN:
        wait_for_last(EARLY)
    x += (b // SHARE).to(tl.int64) * X_STRIDE
    if K <= BK * TILES:
        at += tl.zeros((ROWS, 1), tl.int32)
        row = ()
        for number in tl.static_range(TILES):
            here = number * BK + at
            row += (tl.load(x + here, mask=here < K, other=0.0).to(tl.float32),)
        if NORM != "":
            mean, factor = statistics_of(row, at, K, BK, TILES, NORM, EPS)
        for number in tl.static_range(TILES):
            a = row[number]
            if NORM != "":
                by, plus = norms[number]
                a = normed(a, mean, factor, by, plus, number * BK + at < K, NORM, OFFSET, ROUND_LAST,
                           x.dtype.element_ty)  # fmt: skip
            if number == 0:
                acc0 = products(first0[number], a, BN, BK, EACH)
            else:
                acc0 += products(first0[number], a, BN, BK, EACH)
            if PAIR:
                if number == 0:
                    acc1 = products(first1[number], a, BN, BK, EACH)
                else:
                    acc1 += products(first1[number], a, BN, BK, EACH)
    else:
        acc0 = tl.zeros((BN, BK // EACH), tl.float32)
        acc1 = tl.zeros((BN, BK // EACH), tl.float32)
        v0 = first0[0]
        if PAIR:
            v1 = first1[0]
        if NORM != "":
            by, plus = norms[0]
            one = tl.zeros((1, 1), tl.int32)
            mean, factor = statistics(x, one, one == 0, K, 0, BK, NORM, EPS)
        for k in range(0, K, BK):
            after = k + BK + at
            next0 = weights_at(r0, after, live, K)
            if PAIR:
                next1 = weights_at(r1, after, live, K)
            a = tl.load(x + k + at, mask=k + at < K, other=0.0).to(tl.float32)
            if NORM != "":
                a = normed(a, mean, factor, by, plus, k + at < K, NORM, OFFSET, ROUND_LAST, x.dtype.element_ty)
                by, plus = affine(scale, shift, after, K, NORM)
            acc0 += products(v0, a, BN, BK, EACH)
            v0 = next0
            if PAIR:
                acc1 += products(v1, a, BN, BK, EACH)
                v1 = next1
    y0 = tl.sum(acc0, 1)[None, :]
    y1 = y0
    if PAIR:
        y1 = tl.sum(acc1, 1)[None, :]
    row = tl.zeros((1, BN), tl.int32)
    EPILOGUE(y0, y1, row, lane[None, :], live[None, :], b, tl.program_id(0) * BN,
             p0, p1, p2, p3, p4, p5, p6, p7, p8, p9, p10, p11, p12, p13, p14, p15, p16, p17, p18, p19)  # fmt: skip
