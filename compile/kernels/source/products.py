"""Functions shared by the kernels of matrix products: the order of tiles, and the norm of rows of activations."""

import triton
import triton.language as tl

GROUP: tl.constexpr = tl.constexpr(16)  # tiles of rows that programs take before they go on to the next lanes


@triton.jit
def tile_of(program, M: tl.constexpr, LANES: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    """(first row, first lane) of a program's tile, of ceil(M / BM) · ceil(LANES / BN) tiles.

    Programs that run at the same time share weights, which are then read once, and the activations of `GROUP` tiles of
    rows.
    """
    HIGH: tl.constexpr = (M + BM - 1) // BM
    EACH: tl.constexpr = GROUP * ((LANES + BN - 1) // BN)
    above = program // EACH * GROUP
    high = tl.minimum(HIGH - above, GROUP)
    return (above + program % EACH % high) * BM, program % EACH // high * BN


@triton.jit
def statistics(
    x, rows, live,
    K: tl.constexpr, STRIDE: tl.constexpr, BK: tl.constexpr, NORM: tl.constexpr, EPS: tl.constexpr,
):  # fmt: skip
    """(mean, 1 / standard deviation), float32 [R, 1], of rows with K elements. `rows`: their indices, int [R, 1].

    For the norm "rms" the mean is 0. `live` [R, 1]: which rows exist.
    """
    zeros = (rows * 0).to(tl.float32) + tl.zeros((1, BK), tl.float32)
    mean = tl.sum(zeros, 1, keep_dims=True)
    if NORM == "layer":
        total = zeros
        for k in range(0, K, BK):
            at = k + tl.arange(0, BK)[None, :]
            total += tl.load(x + rows * STRIDE + at, mask=live & (at < K), other=0.0).to(tl.float32)
        mean = tl.sum(total, 1, keep_dims=True) / K
    square = zeros
    for k in range(0, K, BK):
        at = k + tl.arange(0, BK)[None, :]
        v = tl.load(x + rows * STRIDE + at, mask=live & (at < K), other=0.0).to(tl.float32)
        v = tl.where(at < K, v - mean, 0.0)
        square += v * v
    return mean, tl.rsqrt(tl.sum(square, 1, keep_dims=True) / K + EPS)


@triton.jit
def statistics_of(
    row, at, K: tl.constexpr, BK: tl.constexpr, TILES: tl.constexpr, NORM: tl.constexpr, EPS: tl.constexpr
):
    """`statistics` of a row in registers: a tuple of tiles of BK elements, float32, with zeros past the end."""
    mean = tl.sum(row[0] * 0.0, 1, keep_dims=True)
    if NORM == "layer":
        total = row[0]
        for number in tl.static_range(1, TILES):
            total += row[number]
        mean = tl.sum(total, 1, keep_dims=True) / K
    square = row[0] * 0.0
    for number in tl.static_range(TILES):
        v = row[number]
        if NORM == "layer":
            v = tl.where(number * BK + at < K, v - mean, 0.0)
        square += v * v
    return mean, tl.rsqrt(tl.sum(square, 1, keep_dims=True) / K + EPS)


@triton.jit
def affine(scale, shift, at, K: tl.constexpr, NORM: tl.constexpr):
    """The weight and the bias of a norm for some channels, float32. No launch writes them."""
    by = tl.load(scale + at, mask=at < K, other=0.0).to(tl.float32)
    plus = by
    if NORM == "layer":
        plus = tl.load(shift + at, mask=at < K, other=0.0).to(tl.float32)
    return by, plus


@triton.jit
def normed(
    v, mean, factor, by, plus, live,
    NORM: tl.constexpr, OFFSET: tl.constexpr, ROUND_LAST: tl.constexpr, TYPE: tl.constexpr,
):  # fmt: skip
    """Channels of normalised rows, float32, rounded as the norm defines. `TYPE`: the dtype of activations."""
    if NORM == "layer":
        out = (v - mean) * factor * by + plus
    elif OFFSET != 0.0:
        out = v * factor * (by + OFFSET)
    elif ROUND_LAST:
        out = v * factor * by
    else:
        out = (v * factor).to(TYPE).to(tl.float32) * by
    return tl.where(live, out.to(TYPE).to(tl.float32), 0.0)
