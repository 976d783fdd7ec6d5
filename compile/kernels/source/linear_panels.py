"""A product of many rows with a matrix, both of which the copy engine fetches, and an epilogue."""

import triton
import triton.language as tl

from bringup.compile.kernels.source import generated  # noqa: F401  what the functions are written in: part of the key
from bringup.compile.kernels.source.launches import let_next_start, wait_for_last
from bringup.compile.kernels.source.products import tile_of


@triton.jit
def linear_panels(
    x, w0, w1,
    p0, p1, p2, p3, p4, p5, p6, p7, p8, p9, p10, p11, p12, p13, p14, p15, p16, p17, p18, p19,
    EPILOGUE: tl.constexpr, PAIR: tl.constexpr,
    M: tl.constexpr, LANES: tl.constexpr, K: tl.constexpr, X_STRIDE: tl.constexpr, W_STRIDE: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """Tiles of BM rows and BN lanes: EPILOGUE of x · w0, and of x · w1 too if PAIR. Grid: any number of programs.

    dtypes: x and weights bfloat16 or float16; sums in float32. w: [LANES, K] with rows W_STRIDE apart. Addresses and
    strides are divisible by 16 bytes (PTX ISA, `cp.async.bulk.tensor`). The elements of a tile outside of a matrix are
    zeros. A program computes every n-th tile, where n is the number of programs, in one loop over channels: the first
    channels of a tile are fetched while the epilogue of the last tile runs.

    EPILOGUE computes one part of a tile after the other, which takes fewer registers. It has rows [BM, 1] and lanes
    [1, N] of a part, so it loads a bias or a slot once for a column or row. Rows past M repeat the last one, and are
    not stored.

    Tensor maps are written after the wait: all launches have theirs in the same memory. Bytes: x and each weight once
    for every tile. Operations: 2 for each weight and row.
    """
    let_next_start(EARLY)
    wait_for_last(EARLY)
    rows_of_x = tl.make_tensor_descriptor(x, [M, K], [X_STRIDE, 1], [BM, BK])
    rows_of_w0 = tl.make_tensor_descriptor(w0, [LANES, K], [W_STRIDE, 1], [BN, BK])
    rows_of_w1 = rows_of_w0
    if PAIR:
        rows_of_w1 = tl.make_tensor_descriptor(w1, [LANES, K], [W_STRIDE, 1], [BN, BK])
    TILES: tl.constexpr = ((M + BM - 1) // BM) * ((LANES + BN - 1) // BN)
    PARTS: tl.constexpr = 4 if BN > 128 else 2
    for tile in tl.range(tl.program_id(0), TILES, tl.num_programs(0), flatten=True):
        top, first = tile_of(tile, M, LANES, BM, BN)
        acc0 = tl.zeros((BM, BN), tl.float32)
        acc1 = tl.zeros((BM, BN), tl.float32)
        for k in range(0, K, BK):
            a = rows_of_x.load([top, k])
            acc0 = tl.dot(a, rows_of_w0.load([first, k]).T, acc0)
            if PAIR:
                acc1 = tl.dot(a, rows_of_w1.load([first, k]).T, acc1)
        row = top + tl.arange(0, BM)[:, None]
        parts0 = parts_of(acc0, PARTS)
        parts1 = parts_of(acc1, PARTS)
        for part in tl.static_range(PARTS):
            begin = first + part * (BN // PARTS)
            lane = begin + tl.arange(0, BN // PARTS)[None, :]
            EPILOGUE(parts0[part], parts1[part], tl.minimum(row, M - 1), lane, (row < M) & (lane < LANES),
                     tl.program_id(1), begin, p0, p1, p2, p3, p4, p5, p6, p7, p8, p9, p10, p11, p12, p13, p14, p15,
                     p16, p17, p18, p19)  # fmt: skip


@triton.jit
def parts_of(tile, PARTS: tl.constexpr):
    """The 2 or 4 parts of a tile [R, C] from left to right, each [R, C / PARTS]."""
    left, right = halves(tile)
    if PARTS == 4:
        a, b = halves(left)
        c, d = halves(right)
        parts = (a, b, c, d)
    else:
        parts = (left, right)
    return parts


@triton.jit
def halves(tile):
    """The left and the right half of a tile [R, C], each [R, C / 2]."""
    ROWS: tl.constexpr = tile.shape[0]
    return tl.split(tl.permute(tl.reshape(tile, (ROWS, 2, tile.shape[1] // 2)), (0, 2, 1)))
