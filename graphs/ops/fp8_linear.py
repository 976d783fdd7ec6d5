# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""Products of activations and weights that are both float8 e4m3.

`to_fp8` rounds rows of activations, `fp8_linear` and `fp8_experts` multiply its results. The scheme is that of
DeepSeek-V3 (arXiv 2412.19437, section 3.3.2; `act_quant` and `fp8_gemm` in its published kernel.py): a scale is the
largest magnitude of its block / 448, and the sums of a block, in float32, are multiplied by both scales. With weights
that have one scale for each row or matrix, a row of activations has one scale (vLLM's "per token").
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from bringup.graphs.ops.op import op
from bringup.graphs.ops.quant_linear import joined
from bringup.graphs.ops.quantised import Quantised, dtype_of, pieces_of, some_of

if TYPE_CHECKING:
    from torch import Tensor

LARGEST = 448.0  # the largest value of float8 e4m3
LEAST = 1e-30  # least value of a block's largest magnitude, to avoid a division by 0: zeros become zeros


def columns_of(weight: Quantised) -> int:
    """The number of columns of an activation row that share a scale: the same as in a row of the weight."""
    return min(weight.block[-1], weight.shape[-1])


@op("x[... in] ->")
def to_fp8(x: Tensor, columns: int, scale: Tensor | None) -> tuple[Tensor, Tensor]:
    """(codes [..., in], scales [..., in / columns, rounded up]) of x: the bits of e4m3 as uint8, and float32.

    scale = largest / 448 and code = x / scale, in float32, rounded to nearest, ties to even; the largest is at least
    1e-30. The scale of a block with values that are not finite is NaN. With a `scale`, a scalar or one for each first
    index of x, that is the scale of all, and codes are clamped to 448.
    """
    import torch
    from torch.nn import functional as F

    size = x.shape[-1]
    blocks = F.pad(x.float(), (0, -size % columns)).unflatten(-1, (-1, columns))
    if scale is None:
        scales = blocks.abs().amax(-1).clamp(min=LEAST) / LARGEST + (blocks * 0).sum(-1)
    else:
        scales = scale.float().expand(blocks.shape[:-1]).contiguous()
    codes = (blocks / scales[..., None]).clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn).view(torch.uint8)
    return codes.flatten(-2)[..., :size].contiguous(), scales


@op("codes[... in] scales[... blocks] bias[out] -> [... out]")
def fp8_linear(codes: Tensor, scales: Tensor, bias: Tensor | None, weight: Quantised) -> Tensor:
    """x · weightᵀ + bias for x in the form of `to_fp8`: exact products, summed in float32, in the weight's dtype."""
    return _products(codes, scales, bias, weight, [weight])


@fp8_linear.runs_as
def _by_rows(codes: Tensor, scales: Tensor, bias: Tensor | None, weight: Quantised) -> Tensor:
    return _products(codes, scales, bias, weight, pieces_of(weight))


def _products(
    codes: Tensor, scales: Tensor, bias: Tensor | None, weight: Quantised, pieces: Iterable[Quantised]
) -> Tensor:
    return joined([_sums(codes, scales, rows) for rows in pieces], bias).to(dtype_of(weight))


@op("codes_BRi[B R i] scales_BRk[B R k] bias_eo[e o] expert_B[B] -> [B R o]")
def fp8_experts(
    codes_BRi: Tensor, scales_BRk: Tensor, bias_eo: Tensor | None, expert_B: Tensor, weight: Quantised
) -> Tensor:
    """x · weightᵀ + bias with the weight [e, o, i] of each block's expert."""
    out = _sums(codes_BRi, scales_BRk, some_of(weight, expert_B))
    return (out if bias_eo is None else out + bias_eo[expert_B][:, None]).to(dtype_of(weight))


@fp8_experts.runs_as
def _one_by_one(
    codes_BRi: Tensor, scales_BRk: Tensor, bias_eo: Tensor | None, expert_B: Tensor, weight: Quantised
) -> Tensor:
    """As `fp8_experts`, dequantising one expert at a time to float32."""
    import torch

    blocks = range(expert_B.shape[0])
    rows = [slice(block, block + 1) for block in blocks]
    parts = [_sums(codes_BRi[at], scales_BRk[at], some_of(weight, expert_B[at])) for at in rows]
    out = torch.cat(parts) if parts else codes_BRi.new_zeros((0, codes_BRi.shape[1], weight.shape[1])).float()
    return (out if bias_eo is None else out + bias_eo[expert_B][:, None]).to(dtype_of(weight))


def _sums(codes: Tensor, scales: Tensor, weight: Quantised) -> Tensor:
    """The product in float32, [..., rows of the weight]; weights [B, o, i] share their first axis with `codes`."""
    import torch

    x, w = (each.view(torch.float8_e4m3fn).float() for each in (codes, weight.codes))
    of_rows, size, columns = _by_row(weight), weight.shape[-1], columns_of(weight)
    total = None
    for block, start in enumerate(range(0, size, columns)):
        at = slice(start, start + columns)
        part = x[..., at] @ w[..., at].transpose(-1, -2)
        by = of_rows[..., block].unsqueeze(-2) if len(weight.shape) > 2 else of_rows[..., block]
        part = part * scales[..., block : block + 1] * by
        total = part if total is None else total + part
    assert total is not None
    return total


def _by_row(weight: Quantised) -> Tensor:
    """The scales of each row of a weight, float32 [..., rows, blocks of columns]."""
    scales, rows = weight.scales.float(), weight.shape[-2]
    if scales.shape[-2] == 1:
        return scales.expand(*scales.shape[:-2], rows, scales.shape[-1])
    return scales.repeat_interleave(weight.block[-2], -2)[..., :rows, :]
