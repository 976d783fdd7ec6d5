from __future__ import annotations

from typing import TYPE_CHECKING

from bringup.graphs.ops.op import op
from bringup.graphs.ops.quantised import Quantised, dtype_of, in_float32, some_of

if TYPE_CHECKING:
    from torch import Tensor


@op("rows_N[N] -> [N m]")
def quant_embedding(rows_N: Tensor, weight: Quantised) -> Tensor:
    """The rows [N, m] of a table [vocab, m] in few bits: no other is dequantised."""
    return in_float32(some_of(weight, rows_N)).to(dtype_of(weight))
