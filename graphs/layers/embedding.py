from __future__ import annotations

import math
from typing import TYPE_CHECKING

from bringup.graphs.core.module import Module, Param
from bringup.graphs.layers.packed_weight import rows_of

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class Embedding(Module):
    """A table of rows: Embedding("vocab m", vocab=50257, m=768).

    `scale` multiplies the rows. It is rounded to their dtype first, as in transformers' Gemma2TextScaledWordEmbedding:
    at bfloat16, √3072 = 55.43 is 55.5.
    """

    packable = ("weight",)

    def __init__(self, axes: str, *, scale: float | None = None, **sizes: int) -> None:
        super().__init__()
        self.scale = scale
        self.weight = Param(axes, sizes)

    def forward(self, rows_N: Tensor) -> Tensor:
        rows = rows_of(self.weight, rows_N)
        return rows if self.scale is None else rows * rounded(self.scale, rows.dtype)


def rounded(number: float, dtype: torch.dtype) -> float:
    """The number that a dtype has for a float32 number of ordinary size: to the nearest, ties to even."""
    import torch

    for kind in (torch.float32, dtype):
        digits = 1 - round(math.log2(torch.finfo(kind).eps))
        mantissa, exponent = math.frexp(number)
        number = math.ldexp(round(math.ldexp(mantissa, digits)), exponent - digits)
    return number
