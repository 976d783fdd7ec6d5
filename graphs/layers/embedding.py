from __future__ import annotations

from typing import TYPE_CHECKING

from bringup.graphs.core.module import Module, Param

if TYPE_CHECKING:
    from torch import Tensor


class Embedding(Module):
    """A table of rows: Embedding("vocab m", vocab=50257, m=768)."""

    def __init__(self, axes: str, **sizes: int) -> None:
        super().__init__()
        self.weight = Param(axes, sizes)

    def forward(self, rows_N: Tensor) -> Tensor:
        return self.weight[rows_N]
