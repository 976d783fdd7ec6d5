from __future__ import annotations

from typing import TYPE_CHECKING

from bringup.graphs.core.module import Module, Param
from bringup.graphs.ops.norm import layer_norm, rms_norm

if TYPE_CHECKING:
    from torch import Tensor


class LayerNorm(Module):
    def __init__(self, m: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = Param("m", m=m)
        self.bias = Param("m", m=m)

    def forward(self, x: Tensor) -> Tensor:
        return layer_norm(x, self.weight, self.bias, self.eps)


class RMSNorm(Module):
    def __init__(self, m: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = Param("m", m=m)

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.eps)
