"""A product of activations and a matrix, both in float8 e4m3, with an epilogue."""

import triton
import triton.language as tl

from bringup.compile.kernels.source import generated  # noqa: F401  what the functions are written in: part of the key
from bringup.compile.kernels.source.arithmetic import float8_e4m3fn
from bringup.compile.kernels.source.launches import let_next_start, wait_for_last
from bringup.compile.kernels.source.products import tile_of


@triton.jit
def multiplied(x, w, NATIVE: tl.constexpr):
    """x [M, K] · w [K, N] of codes in uint8, as float32. NATIVE: with instructions for float8; otherwise in float16."""
    if NATIVE:
        found = tl.dot(x.to(tl.float8e4nv, bitcast=True), w.to(tl.float8e4nv, bitcast=True))
    else:
        found = tl.dot(float8_e4m3fn(x.to(tl.int32)).to(tl.float16), float8_e4m3fn(w.to(tl.int32)).to(tl.float16))
    return found


@triton.jit
def scales_at(
    scales, e, c, block, live,
    E_STRIDE: tl.constexpr, ROWS: tl.constexpr, ROW_STRIDE: tl.constexpr, STRIDE: tl.constexpr,
):  # fmt: skip
    """The scales of columns c [1, N] of a result, for a block of channels. ROWS adjacent columns share a scale."""
    place = e.to(tl.int64) * E_STRIDE + c // ROWS * ROW_STRIDE + block * STRIDE
    return tl.load(scales + place, mask=live, other=0.0).to(tl.float32)


@triton.jit
def fp8_linear(
    x, xs, w0, s0, w1, s1, expert,
    p0, p1, p2, p3, p4, p5, p6, p7, p8, p9, p10, p11, p12, p13, p14, p15, p16, p17, p18, p19,
    COLUMNS: tl.constexpr, EPILOGUE: tl.constexpr, PAIR: tl.constexpr,
    M: tl.constexpr, LANES: tl.constexpr, K: tl.constexpr, X_STRIDE: tl.constexpr, XS_STRIDE: tl.constexpr,
    W_STRIDE: tl.constexpr, E_STRIDE: tl.constexpr,
    S_EXPERT: tl.constexpr, S_ROWS: tl.constexpr, S_STRIDE: tl.constexpr, S_BLOCK: tl.constexpr,
    BLOCK: tl.constexpr, STEP: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    NATIVE: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """A tile of BM rows: EPILOGUE of x · w0[columns], and of w1 too if PAIR.

    Grid: tiles, blocks of rows. If `expert` is not None, block b uses matrix expert[b]. x and weights are codes in
    uint8, in rows of K. Their scales are xs, float32, and s0 and s1. A scale of x is for BLOCK channels, a scale of a
    weight for S_ROWS rows and BLOCK channels. tl.dot sums STEP channels of one block, at most 128; these sums are
    scaled and added in float32. NATIVE: with instructions for float8. Bytes: codes and scales of weights once for every
    BM rows, those of x once for every BN lanes. Operations: 2 for each weight and row.
    """
    let_next_start(EARLY)
    wait_for_last(EARLY)
    top, begin = tile_of(tl.program_id(0), M, LANES, BM, BN)
    lanes = begin + tl.arange(0, BN)[None, :]
    rows = top + tl.arange(0, BM)[:, None]
    b = tl.program_id(1)
    c0, c1 = COLUMNS(lanes)  # -1 for a lane without columns
    live = (lanes < LANES) & (c0 >= 0)
    c0, c1 = tl.maximum(tl.where(lanes < LANES, c0, 0), 0), tl.maximum(tl.where(lanes < LANES, c1, 0), 0)
    e = b
    if expert is not None:
        e = tl.load(expert + b).to(tl.int32)
        x += b.to(tl.int64) * M * X_STRIDE
        xs += b.to(tl.int64) * M * XS_STRIDE
        w0 += e.to(tl.int64) * E_STRIDE
        if PAIR:
            w1 += e.to(tl.int64) * E_STRIDE
    near = rows.to(tl.int64)
    acc0 = tl.zeros((BM, BN), tl.float32)
    acc1 = tl.zeros((BM, BN), tl.float32)
    deep = tl.arange(0, BK)
    for k in range(0, K, STEP):
        at = k + deep
        inside = (deep < STEP) & (at < K)
        block = k // BLOCK
        a = tl.load(x + near * X_STRIDE + at[None, :], mask=(rows < M) & inside[None, :], other=0)
        by = tl.load(xs + near * XS_STRIDE + block, mask=rows < M, other=0.0)
        v0 = tl.load(w0 + c0.to(tl.int64) * W_STRIDE + at[:, None], mask=inside[:, None], other=0)
        of_w0 = scales_at(s0, e, c0, block, live, S_EXPERT, S_ROWS, S_STRIDE, S_BLOCK)
        acc0 += multiplied(a, v0, NATIVE) * by * of_w0
        if PAIR:
            v1 = tl.load(w1 + c1.to(tl.int64) * W_STRIDE + at[:, None], mask=inside[:, None], other=0)
            of_w1 = scales_at(s1, e, c1, block, live, S_EXPERT, S_ROWS, S_STRIDE, S_BLOCK)
            acc1 += multiplied(a, v1, NATIVE) * by * of_w1
    row = tl.broadcast_to(rows, (BM, BN))
    EPILOGUE(acc0, acc1, row, tl.broadcast_to(lanes, (BM, BN)), (row < M) & live, b, begin,
             p0, p1, p2, p3, p4, p5, p6, p7, p8, p9, p10, p11, p12, p13, p14, p15, p16, p17, p18, p19)  # fmt: skip
