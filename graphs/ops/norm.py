from __future__ import annotations

from typing import TYPE_CHECKING

from bringup.graphs.ops.op import op

if TYPE_CHECKING:
    from torch import Tensor


@op("x[... m] weight[m] bias[m] -> [... m]")
def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Layer normalisation over the last axis (Ba et al. 2016), computed in float32."""
    wide = x.float()
    centred = wide - wide.mean(-1, keepdim=True)
    variance = centred.pow(2).mean(-1, keepdim=True)
    return (centred * (variance + eps).rsqrt() * weight.float() + bias.float()).to(x.dtype)


@op("x[... m] weight[m] -> [... m]")
def rms_norm(x: Tensor, weight: Tensor, eps: float, *, offset: float = 0.0, round_last: bool = False) -> Tensor:
    """Root-mean-square normalisation (Zhang & Sennrich 2019): scaled in float32, rounded, then multiplied by weight.

    The rounding before the product is that of transformers' LlamaRMSNorm; it affects bfloat16. With `round_last` the
    product is float32 too, and its result is rounded. `offset` is added to the weight, in float32: the product is then
    float32 as well.
    """
    wide = x.float()
    scaled = wide * (wide.pow(2).mean(-1, keepdim=True) + eps).rsqrt()
    if offset:
        return (scaled * (weight.float() + offset)).to(x.dtype)
    return (scaled * weight.float()).to(x.dtype) if round_last else weight * scaled.to(x.dtype)
