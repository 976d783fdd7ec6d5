"""Products with weights in few bits, and look-ups in tables of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from bringup.graphs.ops.op import op
from bringup.graphs.ops.quantised import Quantised, dtype_of, in_float32, pieces_of, some_of

if TYPE_CHECKING:
    from torch import Tensor


@op("x[... in] bias[out] -> [... out]")
def quant_linear(x: Tensor, bias: Tensor | None, weight: Quantised) -> Tensor:
    """x · weightᵀ + bias, of a weight [out, in] in few bits, which is rounded to its dtype first as `linear` has it."""
    from torch.nn import functional as F

    return F.linear(x, in_float32(weight).to(dtype_of(weight)), bias)


@quant_linear.runs_as
def _by_rows(x: Tensor, bias: Tensor | None, weight: Quantised) -> Tensor:
    """So many rows of the weight at a time that they stay in a processor's cache."""
    from torch.nn import functional as F

    return joined([F.linear(x, in_float32(rows).to(dtype_of(weight))) for rows in pieces_of(weight)], bias)


def joined(parts: Sequence[Tensor], bias: Tensor | None) -> Tensor:
    """The products [..., some of out] with the pieces of a weight as one."""
    import torch

    out = torch.cat(list(parts), -1) if len(parts) > 1 else parts[0]
    return out if bias is None else out + bias


@op("rows_N[N] -> [N m]")
def quant_embedding(rows_N: Tensor, weight: Quantised) -> Tensor:
    """The rows [N, m] of a table [vocab, m] in few bits: no other is dequantised."""
    return in_float32(some_of(weight, rows_N)).to(dtype_of(weight))
