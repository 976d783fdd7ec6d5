"""Products with quantised weights, those of experts among them, and lookups in quantised tables.

With `Quantised.activations` "int8", x is rounded to int8 before the product: 32 columns of a row share a scale. That is
llama.cpp's scheme (its Q8_0; https://github.com/ggml-org/llama.cpp, ggml/src/ggml-quants.c); there halves are rounded
away from zero and scales are float16, here they are rounded to even and scales are float32.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from bringup.graphs.ops.op import op
from bringup.graphs.ops.quantised import Quantised, dtype_of, in_float32, pieces_of, some_of

if TYPE_CHECKING:
    from torch import Tensor

COLUMNS = 32  # columns of a row of int8 activations that share a scale
LEAST = 1e-30  # least value of their largest magnitude, so that its reciprocal is finite


@op("x[... in] bias[out] -> [... out]")
def quant_linear(x: Tensor, bias: Tensor | None, weight: Quantised) -> Tensor:
    """x · weightᵀ + bias, for a quantised weight [out, in], which is first rounded to the dtype of `linear`."""
    return _products(x, bias, weight, [weight])


@quant_linear.runs_as
def _by_rows(x: Tensor, bias: Tensor | None, weight: Quantised) -> Tensor:
    """Dequantises some rows of the weight at a time, so that they stay in the processor's cache."""
    return _products(x, bias, weight, pieces_of(weight))


def _products(x: Tensor, bias: Tensor | None, weight: Quantised, pieces: Iterable[Quantised]) -> Tensor:
    from torch.nn import functional as F

    if not weight.activations:
        return joined([F.linear(x, in_float32(rows).to(dtype_of(weight))) for rows in pieces], bias)
    rounded = in_int8(x)
    return joined([F.linear(rounded, in_float32(rows)) for rows in pieces], bias).to(x.dtype)


def in_int8(x: Tensor) -> Tensor:
    """x [..., in] as code · scale, float32: a scale is the largest magnitude of 32 columns / 127, codes are integers.

    A code is x · (127 / largest), rounded to nearest, ties to even. Columns with a value that is not finite become NaN.
    """
    import torch
    from torch.nn import functional as F

    size = x.shape[-1]
    padded = F.pad(x.float(), (0, -size % COLUMNS))
    blocks = padded.reshape(*x.shape[:-1], padded.shape[-1] // COLUMNS, COLUMNS)
    largest = blocks.abs().amax(-1, keepdim=True).clamp(min=LEAST)
    scale = largest / 127 + (blocks * 0).sum(-1, keepdim=True)
    codes = torch.round(blocks * (torch.full_like(largest, 127) / largest))
    return (codes * scale).flatten(-2)[..., :size]


def joined(parts: Sequence[Tensor], bias: Tensor | None) -> Tensor:
    """Concatenates the products [..., some of out] with the pieces of a weight, and adds the bias."""
    import torch

    out = torch.cat(list(parts), -1) if len(parts) > 1 else parts[0]
    return out if bias is None else out + bias


@op("rows_N[N] -> [N m]")
def quant_embedding(rows_N: Tensor, weight: Quantised) -> Tensor:
    """The rows [N, m] of a quantised table [vocab, m]; no other rows are dequantised."""
    return in_float32(some_of(weight, rows_N)).to(dtype_of(weight))


@op("x_BRi[B R i] bias_eo[e o] expert_B[B] -> [B R o]")
def quant_experts(x_BRi: Tensor, bias_eo: Tensor | None, expert_B: Tensor, weight: Quantised) -> Tensor:
    """x · weightᵀ + bias as `expert_linear`, for quantised weights [e, o, i]; only selected experts are dequantised."""
    import torch

    given, dtype = (in_int8(x_BRi), torch.float32) if weight.activations else (x_BRi, dtype_of(weight))
    out = torch.bmm(given, in_float32(some_of(weight, expert_B)).to(dtype).transpose(1, 2))
    return _finished(out, bias_eo, expert_B, x_BRi)


@quant_experts.runs_as
def _one_by_one(x_BRi: Tensor, bias_eo: Tensor | None, expert_B: Tensor, weight: Quantised) -> Tensor:
    """Dequantises one expert's weight at a time; once for consecutive blocks of the same expert."""
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
    """Adds the bias, and converts to the dtype of activations."""
    return (out if bias_eo is None else out + bias_eo[expert_B][:, None]).to(x_BRi.dtype)
