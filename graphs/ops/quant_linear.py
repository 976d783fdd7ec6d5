from __future__ import annotations

from typing import TYPE_CHECKING

from bringup.graphs.ops.op import op
from bringup.graphs.ops.quantised import AT_A_TIME, Quantised, dtype_of, in_float32, pieces_of

if TYPE_CHECKING:
    from torch import Tensor


@op("x[... in] bias[out] -> [... out]")
def quant_linear(x: Tensor, bias: Tensor | None, weight: Quantised) -> Tensor:
    """x · weightᵀ + bias, of a weight [out, in] in few bits, which is rounded to its dtype first as `linear` has it."""
    from torch.nn import functional as F

    return F.linear(x, in_float32(weight).to(dtype_of(weight)), bias)


@quant_linear.runs_as
def by_rows(x: Tensor, bias: Tensor | None, weight: Quantised, at_a_time: int = AT_A_TIME) -> Tensor:
    """Some rows of the weight at a time, of so many elements: by default as many as stay in a processor's cache."""
    import torch
    from torch.nn import functional as F

    parts = [F.linear(x, in_float32(rows).to(dtype_of(weight))) for rows in pieces_of(weight, at_a_time)]
    out = torch.cat(parts, -1) if len(parts) > 1 else parts[0]
    return out if bias is None else out + bias
