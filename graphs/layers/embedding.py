from __future__ import annotations

import math
from typing import TYPE_CHECKING

from bringup.graphs.core.axes import shape_of
from bringup.graphs.core.module import Module, Param
from bringup.graphs.layers.lora import LoraSlots
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
    lora_parameters = ("weight",)

    def __init__(self, axes: str, *, scale: float | None = None, **sizes: int) -> None:
        super().__init__()
        self.scale = scale
        self.weight = Param(axes, sizes)
        self.weight_lora: LoraSlots | None = None

    def add_lora(self, slots: int, rank: int) -> None:
        """As `Linear.add_lora`: A is multiplied with the one-hot rows of the table, B with the result."""
        count, width = shape_of(self.weight.axes)
        self.weight_lora = LoraSlots(slots, rank, count, width)

    def forward(self, rows_N: Tensor) -> Tensor:
        rows = rows_of(self.weight, rows_N)
        if self.weight_lora is not None:
            rows = self.weight_lora.rows(rows_N, rows)
        return rows if self.scale is None else rows * rounded(self.scale, rows.dtype)


def rounded(number: float, dtype: torch.dtype) -> float:
    """A float32 number rounded to a dtype, to nearest, ties to even; the number must be in the dtype's normal range."""
    import torch

    for kind in (torch.float32, dtype):
        digits = 1 - round(math.log2(torch.finfo(kind).eps))
        mantissa, exponent = math.frexp(number)
        number = math.ldexp(round(math.ldexp(mantissa, digits)), exponent - digits)
    return number
