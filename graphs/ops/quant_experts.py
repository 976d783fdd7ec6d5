from __future__ import annotations

from typing import TYPE_CHECKING

from bringup.graphs.ops.op import op
from bringup.graphs.ops.quant_linear import in_int8
from bringup.graphs.ops.quantised import Quantised, dtype_of, in_float32, some_of

if TYPE_CHECKING:
    from torch import Tensor


@op("x_BRi[B R i] bias_eo[e o] expert_B[B] -> [B R o]")
def quant_experts(x_BRi: Tensor, bias_eo: Tensor | None, expert_B: Tensor, weight: Quantised) -> Tensor:
    """x · weightᵀ + bias as `expert_linear`, for quantised weights [e, o, i]; only selected experts are dequantised."""
    import torch

    given, dtype = (in_int8(x_BRi), torch.float32) if weight.activations else (x_BRi, dtype_of(weight))
    out = torch.bmm(given, in_float32(some_of(weight, expert_B)).to(dtype).transpose(1, 2))
    return _finished(out, bias_eo, expert_B, x_BRi)


@quant_experts.runs_as
def _one_by_one(x_BRi: Tensor, bias_eo: Tensor | None, expert_B: Tensor, weight: Quantised) -> Tensor:
    """One expert's weight at a time; of blocks of the same expert that follow each other, once."""
    import torch

    given, dtype = (in_int8(x_BRi), torch.float32) if weight.activations else (x_BRi, dtype_of(weight))
    parts: list[Tensor] = []
    numbers = [int(number) for number in expert_B]
    first = 0
    while first < len(numbers):
        last = first + 1
        while last < len(numbers) and numbers[last] == numbers[first]:
            last += 1
        weight_oi = in_float32(some_of(weight, expert_B[first : first + 1]))[0].to(dtype)
        parts.append(given[first:last] @ weight_oi.T)
        first = last
    return _finished(torch.cat(parts), bias_eo, expert_B, x_BRi)


def _finished(out: Tensor, bias_eo: Tensor | None, expert_B: Tensor, x_BRi: Tensor) -> Tensor:
    """Products with their bias, in the dtype of activations."""
    return (out if bias_eo is None else out + bias_eo[expert_B][:, None]).to(x_BRi.dtype)
