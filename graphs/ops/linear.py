from __future__ import annotations

from typing import TYPE_CHECKING

from bringup.graphs.ops.op import op

if TYPE_CHECKING:
    from torch import Tensor


@op("x[... in] weight[out in] bias[out] -> [... out]")
def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x · weightᵀ + bias."""
    from torch.nn import functional as F

    return F.linear(x, weight, bias)
