from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Protocol

from bringup.graphs.core.module import Const, Module, Param
from bringup.graphs.ops.norm import layer_norm, rms_norm

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor


class Norm(Protocol):
    """A class of norms over a last axis of size m."""

    def __call__(self, m: int, eps: float, /) -> Module: ...


class LayerNorm(Module):
    def __init__(self, m: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = Param("m", m=m)
        self.bias = Param("m", m=m)

    def forward(self, x: Tensor) -> Tensor:
        return layer_norm(x, self.weight, self.bias, self.eps)


class RMSNorm(Module):
    """x / rms(x) · weight over the last axis, of size m. A variant is a subclass with other settings of `rms_norm`."""

    offset: ClassVar[float] = 0.0
    round_last: ClassVar[bool] = False

    def __init__(self, m: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = Param("m", m=m)

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.eps, offset=self.offset, round_last=self.round_last)


class OnePlusRMSNorm(RMSNorm):
    """Multiplies by 1 + weight in float32 (transformers' Gemma2RMSNorm)."""

    offset = 1.0


class Float32RMSNorm(RMSNorm):
    """Multiplies by weight in float32, and rounds last (transformers' Olmo2RMSNorm)."""

    round_last = True


class UnitRMSNorm(Module):
    """x / rms(x) over the last axis, of size m, without a weight."""

    def __init__(self, m: int, eps: float) -> None:
        super().__init__()
        self.eps = eps

        def ones(_: int) -> np.ndarray:
            import numpy as np

            return np.ones(m, np.float32)

        self.ones = Const("m", ones, m=m)

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.ones, self.eps, round_last=True)
