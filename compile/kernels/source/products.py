"""What both kernels of a matrix product have: the norm of a row of activations."""

import triton
import triton.language as tl


@triton.jit
def statistics(
    x, rows, live,
    K: tl.constexpr, STRIDE: tl.constexpr, BK: tl.constexpr, NORM: tl.constexpr, EPS: tl.constexpr,
):  # fmt: skip
    """(mean, 1 / deviation) of rows [R, 1] of K numbers, float32 [R, 1]; the mean of "rms" is 0. `live`: [R, 1]."""
    total = tl.zeros_like(rows).to(tl.float32)
    mean = total
    if NORM == "layer":
        for k in range(0, K, BK):
            at = k + tl.arange(0, BK)[None, :]
            v = tl.load(x + rows * STRIDE + at, mask=live & (at < K), other=0.0).to(tl.float32)
            total += tl.sum(v, 1, keep_dims=True)
        mean = total / K
        total = tl.zeros_like(total)
    for k in range(0, K, BK):
        at = k + tl.arange(0, BK)[None, :]
        v = tl.load(x + rows * STRIDE + at, mask=live & (at < K), other=0.0).to(tl.float32)
        v = tl.where(at < K, v - mean, 0.0)
        total += tl.sum(v * v, 1, keep_dims=True)
    return mean, tl.rsqrt(total / K + EPS)


@triton.jit
def normed(
    v, mean, factor, scale, shift, at, live, K: tl.constexpr,
    NORM: tl.constexpr, OFFSET: tl.constexpr, ROUND_LAST: tl.constexpr, TYPE: tl.constexpr,
):  # fmt: skip
    """Channels of normed rows in float32, rounded as the norm's definition says. `TYPE`: the dtype of activations."""
    s = tl.load(scale + at, mask=at < K, other=0.0).to(tl.float32)
    if NORM == "layer":
        b = tl.load(shift + at, mask=at < K, other=0.0).to(tl.float32)
        out = (v - mean) * factor * s + b
    elif OFFSET != 0.0:
        out = v * factor * (s + OFFSET)
    elif ROUND_LAST:
        out = v * factor * s
    else:
        out = (v * factor).to(TYPE).to(tl.float32) * s
    return tl.where(live & (at < K), out.to(TYPE).to(tl.float32), 0.0)
