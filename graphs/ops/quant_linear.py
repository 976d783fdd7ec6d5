from __future__ import annotations

from typing import TYPE_CHECKING

from bringup.graphs.ops.op import op
from bringup.graphs.ops.quantised import Quantised, dtype_of, in_float32

if TYPE_CHECKING:
    from torch import Tensor


@op("x[... in] bias[out] -> [... out]")
def quant_linear(x: Tensor, bias: Tensor | None, weight: Quantised) -> Tensor:
    """x · weightᵀ + bias, of a weight [out, in] in few bits, which is rounded to its dtype first as `linear` has it."""
    from torch.nn import functional as F

    return F.linear(x, in_float32(weight).to(dtype_of(weight)), bias)
