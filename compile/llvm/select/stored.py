"""Stored: the format of a packed weight, as a setting of a kernel. Its arrays are arguments of the kernel."""

from __future__ import annotations

from dataclasses import dataclass

from bringup.compile.kernels.call import Operand
from bringup.compile.kernels.code.dequantised import Packed
from bringup.compile.kernels.select.tensors import tensor_of
from bringup.compile.schedule.graph.op_graph import OpGraph, View
from bringup.spec import Shape

PARTS = ("codes", "scales", "zeros", "minimums", "outer_scales", "outer_minimums", "block_of", "table", "scale_table")
DTYPES = ("float32", "bfloat16", "float16", "int32", "int8", "uint8")
WHOLE = 0  # block size: the complete axis, whatever its size


@dataclass(frozen=True, slots=True)
class Stored:
    """The fields of `ops.quantised.Quantised` that code depends on, for a weight [matrices, rows, columns].

    `arrays` are the (name, dtype) of the arrays present. Blocks are (matrices, rows, columns) with one value. Each
    array has three slots: its address, and the strides of its matrices and of its rows, which are 0 if there is one.
    """

    arrays: tuple[tuple[str, str], ...]
    axis: int
    values: int
    bits: int
    signed: bool
    zero_bits: int
    offset: int
    block: Shape
    outer: Shape
    indexed: int
    code_dtype: str
    scale_dtype: str

    def has(self, name: str) -> bool:
        """Whether the weight has this array."""
        return any(name == each for each, _ in self.arrays)

    def dtype(self, name: str) -> str:
        """The dtype of an array of the weight."""
        return dict(self.arrays)[name]

    @property
    def slots(self) -> int:
        """The number of slots of its arrays."""
        return 3 * len(self.arrays)

    @property
    def in_words(self) -> int:
        """The number of rows that share a word; 1 if a word has elements of one row."""
        return self.values if self.values > 1 and self.axis == 1 else 1

    @property
    def has_terms(self) -> bool:
        """Whether elements are code · scale + term, not only code · scale."""
        return bool(self.offset) or self.has("zeros") or self.has("minimums")


def stored_of(graph: OpGraph, weight: Packed) -> tuple[Stored, list[Operand]] | None:
    """The format of a weight and its slots; None if kernels do not support its arrays."""
    found: list[tuple[str, str]] = []
    slots: list[Operand] = []
    lead = 3 - len(weight.shape)
    if lead < 0 or lead > 1:
        return None
    for name in PARTS:
        view: View | None = getattr(weight, name)
        if view is None:
            continue
        tensor = tensor_of(graph, view)
        if tensor.dtype not in DTYPES or not tensor.is_dense:
            return None
        found.append((name, tensor.dtype))
        if len(tensor.shape) == 1 and name in PARTS[-3:]:
            slots += [tensor.place, 0, 0]
            continue
        matrices, rows, columns = (*(1,) * lead, *tensor.shape)
        slots += [tensor.place, rows * columns if matrices > 1 else 0, columns if rows > 1 else 0]
    stored = Stored(
        arrays=tuple(found), axis=weight.axis + lead if weight.values > 1 else 0, values=weight.values,
        bits=weight.bits, signed=weight.signed, zero_bits=weight.zero_bits, offset=weight.offset,
        block=_block(weight, weight.block, weight.scales, lead),
        outer=_block(weight, weight.outer_block, weight.outer_scales, lead) if weight.outer_scales else (),
        indexed=weight.indexed + lead if weight.indexed >= 0 else -1,
        code_dtype=weight.code_dtype, scale_dtype=weight.scale_dtype,
    )  # fmt: skip
    return stored, slots


def _block(weight: Packed, block: Shape, view: View | None, lead: int) -> Shape:
    """Replaces a block size that equals the axis by WHOLE, so that weights of all sizes share the code."""
    assert view is not None
    sizes = [
        WHOLE if count == 1 and axis != weight.indexed else size
        for axis, (size, count) in enumerate(zip(block, view.shape, strict=True))
    ]
    return (*(WHOLE,) * lead, *sizes)
