"""A packed parameter as the weight of a layer, and the functions of layers that support both kinds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from bringup.graphs.core.axes import Axes, show, sizes_of
from bringup.graphs.core.module import Const, Module, Param
from bringup.graphs.core.packed_form import PackedForm
from bringup.graphs.ops.fp8_linear import columns_of, fp8_experts, fp8_linear, to_fp8
from bringup.graphs.ops.linear import linear
from bringup.graphs.ops.moe_experts import expert_linear
from bringup.graphs.ops.quant_linear import quant_embedding, quant_experts, quant_linear
from bringup.graphs.ops.quantised import Quantised, dequantise
from bringup.spec import DTYPES

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

PARTS = ("codes", "scales", "zeros", "minimums", "outer_scales", "outer_minimums", "index", "input_scales")


class PackedWeight(Module):
    """The arrays of a parameter with these axes: `codes` in words, `scales`, and the others of its form."""

    def __init__(self, axes: Axes, packed: PackedForm, activations: str | None = None) -> None:
        """`activations` as in `core.options.GraphOptions`; "fp8" affects float8 weights only."""
        super().__init__()
        takes = activations != "fp8" or packed.is_fp8
        self.packed, self.activations = packed, (activations or "") if takes else ""
        named = tuple(axis if axis.name else replace(axis, name=f"dim{k}") for k, axis in enumerate(axes))
        for name in PARTS:
            setattr(self, name, None)
        for number, part in enumerate(packed.form.parts()):
            shape, dtype = packed.shape_of(part), packed.stored_dtype(number)
            if part.name == "codes":
                axis, values = packed.pack
                pack = f"{named[axis].name}:{values}" if values > 1 else ""
                param = Param(show(named), sizes_of(named), dtype=dtype, pack=pack)
            else:
                at = named if part.name != "index" else (named[packed.indexed],)
                sizes = {axis.name: size for axis, size in zip(at, shape, strict=True)}
                param = Param(" ".join(sizes), sizes, dtype=dtype)
            setattr(self, part.name, param)
        self.table = _table(packed.table)
        self.scale_table = _table(packed.scale_table)

    def input_scale(self, expert_B: Tensor | None = None) -> Tensor | None:
        """The static scale by which activations are divided before they are rounded to float8: a scalar or [B, 1, 1].

        None if the checkpoint has none. For a matrix that combines several of the checkpoint, it is the largest.
        """
        found: Any = self.input_scales
        if found is None or expert_B is None:
            return found if found is None else found.reshape(()) if found.numel() == 1 else found.amax()
        of_each = found if found.shape[1:].numel() == 1 else found.amax((1, 2), keepdim=True)
        return of_each[expert_B] if of_each.shape[0] > 1 else of_each.reshape(())

    def quantised(self) -> Quantised:
        """The weight as the argument of ops."""
        packed, part = self.packed, {name: getattr(self, name) for name in PARTS[:-2]}
        code, zero = DTYPES[packed.dtypes[0]], DTYPES[packed.form.zero or "float32"]
        axis, values = packed.pack
        others: Any = {"block_of": self.index, "table": self.table, "scale_table": self.scale_table}
        return Quantised(
            **part,
            **others,
            shape=packed.shape,
            axis=axis,
            values=values,
            bits=code.bits,
            signed=code.kind == "int" and not packed.form.table,
            zero_bits=zero.bits if zero.kind == "int" and zero.bits < 8 else 0,
            offset=packed.form.offset,
            block=packed.block,
            outer_block=packed.outer,
            indexed=packed.indexed,
            dtype=packed.dtype,
            code_dtype="" if packed.form.table else packed.dtypes[0],
            scale_dtype=packed.dtypes[1],
            activations=self.activations,
        )


def product(x: Tensor, weight: Any, bias: Tensor | None = None) -> Tensor:
    """x · weightᵀ + bias, for a plain or packed weight."""
    if not isinstance(weight, PackedWeight):
        return linear(x, weight, bias)
    quantised = weight.quantised()
    if quantised.activations == "fp8":
        return fp8_linear(*to_fp8(x, columns_of(quantised), weight.input_scale()), bias, quantised)
    return quant_linear(x, bias, quantised)


def expert_product(x_BRi: Tensor, weight_eoi: Any, bias_eo: Tensor | None, expert_B: Tensor) -> Tensor:
    """x · weightᵀ + bias with the weight of each block's expert; see `ops.moe_experts.expert_linear`."""
    if not isinstance(weight_eoi, PackedWeight):
        return expert_linear(x_BRi, weight_eoi, bias_eo, expert_B)
    quantised = weight_eoi.quantised()
    if quantised.activations == "fp8":
        given = to_fp8(x_BRi, columns_of(quantised), weight_eoi.input_scale(expert_B))
        return fp8_experts(*given, bias_eo, expert_B, quantised)
    return quant_experts(x_BRi, bias_eo, expert_B, quantised)


def rows_of(table: Any, rows_N: Tensor) -> Tensor:
    """Rows [N, m] of a table [vocab, m]."""
    return quant_embedding(rows_N, table.quantised()) if isinstance(table, PackedWeight) else table[rows_N]


def dense(weight: Any) -> Tensor:
    """The complete dequantised parameter, for computations that the other functions here do not cover."""
    return dequantise(weight.quantised()) if isinstance(weight, PackedWeight) else weight


@dataclass(frozen=True, slots=True)
class _Numbers:
    numbers: tuple[float, ...]

    def __call__(self, positions: int) -> np.ndarray:
        import numpy as np

        return np.array(self.numbers, np.float32)


def _table(numbers: tuple[float, ...]) -> Const | None:
    return Const("code", _Numbers(numbers), code=len(numbers)) if numbers else None
