"""Triton code for the elements of a packed weight: the formula of `graphs.ops.quantised`, element by element."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from bringup.compile.kernels.code.index import At, Index
from bringup.compile.kernels.code.types import POINTERS
from bringup.compile.kernels.code.writer import Code, NotTaken
from bringup.compile.schedule.graph.op_graph import Node, View
from bringup.spec import Shape

NARROW = frozenset({"float8_e4m3fn", "float4_e2m1fn", "float8_e8m0fnu"})  # functions of `source/arithmetic.py`
_ROUND = 1 << 23  # 2^23: in float32 its low mantissa bits are those of an integer that is added to it
_BITS = 0x4B000000  # 2^23 as the bits of a float32


@dataclass(frozen=True, slots=True)
class Packed:
    """`graphs.ops.quantised.Quantised` with views instead of tensors; see there for the fields."""

    codes: View
    scales: View
    zeros: View | None
    minimums: View | None
    outer_scales: View | None
    outer_minimums: View | None
    block_of: View | None
    table: View | None
    scale_table: View | None
    shape: Shape
    axis: int
    values: int
    bits: int
    signed: bool
    zero_bits: int
    offset: int
    block: Shape
    outer_block: Shape
    indexed: int
    dtype: str
    code_dtype: str
    scale_dtype: str
    activations: str

    @property
    def arrays(self) -> list[View]:
        """The codes, and the arrays with one element for each block."""
        parts = (self.scales, self.zeros, self.minimums, self.outer_scales, self.outer_minimums)
        return [self.codes, *(part for part in parts if part)]


def packed_of(node: Node) -> Packed:
    """The packed weight among the arguments of a node."""
    found: dict[str, Any] = {field.name: node.argument(f"weight_{field.name}") for field in fields(Packed)}
    return Packed(**found)


@dataclass(frozen=True, slots=True)
class Places:
    """The elements of a tile: their index, and the index from which their words are read.

    `words` is the index of the first element in the word of each element, along the axis of words. `start` is the first
    column of a tile of `step` columns; an array with one element for a multiple of `step` columns is read once.
    """

    index: Index
    words: Index
    start: str = ""
    step: int = 0


def dequantised(code: Code, weight: Packed, places: Places) -> str:
    """Writes code for the elements of a weight. Returns a float32 tile, not yet rounded to the dtype of products.

    Raises NotTaken for an array whose dtype is not supported.
    """
    value = _codes(code, weight, places)
    if weight.zeros is not None:
        value = f"({value} - {_zeros(code, weight, places)})"
    value = f"{value} * {_scaled(code, weight, places, weight.scales, weight.outer_scales)}"
    if weight.minimums is not None:
        value = f"{value} + {_scaled(code, weight, places, weight.minimums, weight.outer_minimums)}"
    return value


def _codes(code: Code, weight: Packed, places: Places) -> str:
    """The codes as float32: looked up in the table of values, or minus the offset."""
    index, per_word = list(places.index), weight.values > 1
    if per_word:
        first = places.words[weight.axis]
        index[weight.axis] = _divided(code, first, weight.values)
    text = _load(code, weight.codes, tuple(index), "tl.int32")
    if per_word:
        own = places.index[weight.axis]
        text = f"({text} >> {_shift(code, own, weight)}) & {(1 << weight.bits) - 1}"
        text = code.variable(text, places.index)
    if weight.table is not None and weight.code_dtype in NARROW:
        return f"{weight.code_dtype}({text})"
    if weight.table is not None:
        return _load(code, weight.table, (At(text),), "tl.float32")
    return _whole(text, weight)


def _shift(code: Code, at: At, weight: Packed) -> str:
    if not at.symbol:
        return str(at.offset % weight.values * weight.bits)
    return code.variable(f"(({at.text}) % {weight.values} * {weight.bits}).to(tl.int32)", (at,))


def _whole(text: str, weight: Packed) -> str:
    """An integer code minus the offset, as float32.

    The code is inserted into the bits of 2^23, which is then subtracted: a conversion instruction is slower.
    """
    if weight.bits > 8:
        return f"({text}.to(tl.float32) - {float(weight.offset)})"
    low = (1 << weight.bits) - 1
    if weight.signed:  # as a number from 0 on
        text, less = f"(({text} & {low}) ^ {1 << weight.bits - 1})", 1 << weight.bits - 1
    else:
        text, less = f"({text} & {low})", 0
    return f"(({text} | {_BITS}).to(tl.float32, bitcast=True) - {float(_ROUND + less + weight.offset)})"


def _zeros(code: Code, weight: Packed, places: Places) -> str:
    assert weight.zeros is not None
    if not weight.zero_bits:
        return _of_block(code, weight, places, weight.zeros, "tl.float32")
    half = 1 << weight.zero_bits - 1
    text = _of_block(code, weight, places, weight.zeros, "tl.int32")
    return f"(({text} ^ {half}) - {half}).to(tl.float32)"


def _scaled(code: Code, weight: Packed, places: Places, own: View, outer: View | None) -> str:
    """Scales or minimums of blocks, multiplied by the scales of the outer blocks if there are any."""
    if own is weight.scales and weight.scale_table is not None:
        text = _of_block(code, weight, places, own, "tl.int32")
        if weight.scale_dtype in NARROW:
            text = f"{weight.scale_dtype}({text})"
        else:
            text = _load(code, weight.scale_table, (At(text),), "tl.float32")
    else:
        text = _of_block(code, weight, places, own, "tl.float32")
    if outer is None:
        return text
    return code.variable(f"{text} * {_of_block(code, weight, places, outer, 'tl.float32', outer=True)}", places.index)


def _of_block(code: Code, weight: Packed, places: Places, part: View, dtype: str, *, outer: bool = False) -> str:
    """The elements of an array for the blocks of the tile. `outer`: for the outer blocks."""
    blocks = weight.outer_block if outer else weight.block
    index: list[At] = []
    for axis, (at, block, size) in enumerate(zip(places.index, blocks, part.shape, strict=True)):
        if size == 1:
            index.append(At())
        elif axis == weight.indexed and not outer and weight.block_of is not None:
            index.append(At(_load(code, weight.block_of, (at,), "tl.int32")))
        elif axis == len(blocks) - 1 and places.step and block % places.step == 0:
            index.append(At(code.variable(f"{places.start} // {block}", (At(places.start),))))
        else:
            index.append(_divided(code, at, block))
    return _load(code, part, tuple(index), dtype)


def _divided(code: Code, at: At, by: int) -> At:
    if by == 1:
        return at
    return At(code.variable(f"({at.text}) // {by}", (at,))) if at.symbol else At("", 1, at.offset // by)


def _load(code: Code, view: View, index: Index, dtype: str) -> str:
    """A variable with the element at an index of a view, cast to a dtype."""
    buffer = code.graph.buffers[view.buffer]
    if buffer.dtype not in POINTERS:
        raise NotTaken
    mask = code.mask(index)
    masked = f", mask={mask}, other=0" if mask else ""
    text = f"tl.load({code.address(buffer, view.strides, index, view.offset)}{masked}).to({dtype})"
    return code.variable(text, index)
