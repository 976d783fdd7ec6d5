"""A product of one row and a packed matrix, with the norm before it and an epilogue."""

import triton
import triton.language as tl

from bringup.compile.kernels.source import generated  # noqa: F401  what the functions are written in: part of the key
from bringup.compile.kernels.source.launches import let_next_start, wait_for_last
from bringup.compile.kernels.source.products import affine, normed, statistics


@triton.jit
def quant_linear(
    x, expert, scale, shift,
    p0, p1, p2, p3, p4, p5, p6, p7, p8, p9, p10, p11, p12, p13, p14, p15, p16, p17, p18, p19,
    COLUMNS: tl.constexpr, WEIGHT0: tl.constexpr, WEIGHT1: tl.constexpr, EPILOGUE: tl.constexpr, PAIR: tl.constexpr,
    LANES: tl.constexpr, K: tl.constexpr, SHARE: tl.constexpr, X_STRIDE: tl.constexpr,
    NORM: tl.constexpr, EPS: tl.constexpr, OFFSET: tl.constexpr, ROUND_LAST: tl.constexpr,
    BN: tl.constexpr, WORD: tl.constexpr, PARTS: tl.constexpr, BK: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """Row b of a result: EPILOGUE of norm(x[b // SHARE]) · weight[columns], and of a second weight too if PAIR.

    Grid: lanes / BN, rows. dtypes: x float32, bfloat16 or float16; sums in float32. WEIGHT0 and WEIGHT1 return
    dequantised elements of the weights, of expert expert[b] if `expert` is not None, from arrays among p0, …. COLUMNS
    returns the columns for a lane; WORD adjacent lanes share the words of the first. A tile has PARTS parts of BK
    channels, each within one block. Bytes: codes once, scales once for every BK channels, x once for each program.
    Operations: 2 for each weight, and those of dequantisation.
    """
    let_next_start(EARLY)
    wait_for_last(EARLY)
    first = tl.program_id(0) * BN + tl.arange(0, BN // WORD)[:, None, None, None] * WORD
    lanes = first + tl.arange(0, WORD)[None, :, None, None]
    b = tl.program_id(1)
    c0, c1 = COLUMNS(lanes)  # -1 for a lane without columns
    g0, g1 = COLUMNS(first)
    c0, c1 = tl.maximum(tl.where(lanes < LANES, c0, 0), 0), tl.maximum(tl.where(lanes < LANES, c1, 0), 0)
    g0, g1 = tl.maximum(tl.where(first < LANES, g0, 0), 0), tl.maximum(tl.where(first < LANES, g1, 0), 0)
    x += (b // SHARE).to(tl.int64) * X_STRIDE
    e = b
    if expert is not None:
        e = tl.load(expert + b).to(tl.int32)
    one = tl.zeros((1, 1), tl.int32)
    if NORM != "":
        mean, factor = statistics(x, one, one == 0, K, 0, PARTS * BK, NORM, EPS)
        mean, factor = tl.reshape(mean, (1, 1, 1, 1)), tl.reshape(factor, (1, 1, 1, 1))
    acc0 = tl.zeros((BN // WORD, WORD, PARTS, BK), tl.float32)
    acc1 = tl.zeros((BN // WORD, WORD, PARTS, BK), tl.float32)
    for k in range(0, K, PARTS * BK):
        part = k + tl.arange(0, PARTS)[None, None, :, None] * BK
        at = part + tl.arange(0, BK)[None, None, None, :]
        m = at < K
        v0 = WEIGHT0(e, c0, g0, at, part, m, part < K,
                     p0, p1, p2, p3, p4, p5, p6, p7, p8, p9,
                     p10, p11, p12, p13, p14, p15, p16, p17, p18, p19)  # fmt: skip
        if PAIR:
            v1 = WEIGHT1(e, c1, g1, at, part, m, part < K,
                         p0, p1, p2, p3, p4, p5, p6, p7, p8, p9,
                         p10, p11, p12, p13, p14, p15, p16, p17, p18, p19)  # fmt: skip
        a = tl.load(x + at, mask=m, other=0.0).to(tl.float32)
        if NORM != "":
            by, plus = affine(scale, shift, at, K, NORM)
            a = normed(a, mean, factor, by, plus, m, NORM, OFFSET, ROUND_LAST, x.dtype.element_ty)
        acc0 += v0 * a
        if PAIR:
            acc1 += v1 * a
    y0 = tl.reshape(tl.sum(tl.sum(acc0, 3), 2), (1, BN))
    y1 = y0
    if PAIR:
        y1 = tl.reshape(tl.sum(tl.sum(acc1, 3), 2), (1, BN))
    lane = tl.program_id(0) * BN + tl.arange(0, BN)[None, :]
    c0, c1 = COLUMNS(lane)
    row = tl.zeros((1, BN), tl.int32)
    EPILOGUE(y0, y1, row, lane, (lane < LANES) & (c0 >= 0), b, tl.program_id(0) * BN,
             p0, p1, p2, p3, p4, p5, p6, p7, p8, p9, p10, p11, p12, p13, p14, p15, p16, p17, p18, p19)  # fmt: skip
