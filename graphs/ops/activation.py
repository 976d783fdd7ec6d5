from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from bringup.graphs.ops.op import op

if TYPE_CHECKING:
    from torch import Tensor


@op("x[...] -> [...]")
def gelu(x: Tensor) -> Tensor:
    """Gaussian error linear unit (Hendrycks & Gimpel 2016), by the error function."""
    import torch

    return (0.5 * x.float() * (1.0 + torch.erf(x.float() / math.sqrt(2.0)))).to(x.dtype)


@op("x[...] -> [...]")
def gelu_tanh(x: Tensor) -> Tensor:
    """The tanh approximation of GELU (section 2 of the same paper); Hugging Face's `gelu_new`."""
    import torch

    wide = x.float()
    inner = math.sqrt(2.0 / math.pi) * (wide + 0.044715 * wide * wide * wide)
    return (0.5 * wide * (1.0 + torch.tanh(inner))).to(x.dtype)


@op("x[...] -> [...]")
def silu(x: Tensor) -> Tensor:
    """x · sigmoid(x) (Elfwing et al. 2017), also called swish."""
    import torch

    wide = x.float()
    return (wide * torch.sigmoid(wide)).to(x.dtype)


@op("x[...] -> [...]")
def relu(x: Tensor) -> Tensor:
    """max(x, 0)."""
    return x.clamp(min=0)


def relu_squared(x: Tensor) -> Tensor:
    """max(x, 0)² (So et al. 2021, "Primer", section 4)."""
    positive = relu(x)
    return positive * positive


def softplus(x: Tensor) -> Tensor:
    """log(1 + exp(x)) (Dugas et al. 2001), without overflow: max(x, 0) + log(1 + exp(-|x|))."""
    return x.clamp(min=0) + x.abs().neg().exp().log1p()


def soft_cap(x: Tensor, cap: float | None) -> Tensor:
    """cap · tanh(x / cap), in float32: values between -cap and cap (Gemma 2 report, section 2). None returns x."""
    import torch

    return x if cap is None else (torch.tanh(x.float() / cap) * cap).to(x.dtype)


def scaled(x: Tensor, factor: float) -> Tensor:
    """factor · x; 1 returns x."""
    return x if factor == 1 else x * factor


# Names in Hugging Face configs (`hidden_act`, `activation_function`).
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": gelu,
    "gelu_fast": gelu_tanh,
    "gelu_new": gelu_tanh,
    "gelu_pytorch_tanh": gelu_tanh,
    "silu": silu,
    "swish": silu,
    "relu": relu,
    "relu2": relu_squared,
}
