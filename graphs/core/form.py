"""The form of a quantised matrix: codes, and the arrays that dequantise them.

One description for all published schemes: float8 and float4 with scales, integers with scales and zero points (AWQ,
GPTQ, compressed-tensors), tables of values (bitsandbytes' nf4), blocks of GGUF.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

Block = tuple[int, int]  # rows and columns of a matrix

WHOLE = 0  # size of a block: all rows, or all columns
NF4 = (  # quantiles of a normal distribution (bitsandbytes/functional.py, `get_4bit_type`)
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip


class FormPart(NamedTuple):
    """One array of a form: `name`, `dtype`, and the number of rows and columns that share a value; 0 means all."""

    name: str
    dtype: str
    block: Block


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """value = (code - offset - zero) · (scale · outer scale) + minimum · outer minimum, in a matrix [rows, columns].

    `codes` is the dtype of the codes; with a `table`, codes are indices into it and are replaced by its entries.
    `scale` is the dtype of the scales, one for each `block` of rows and columns: (1, 128) is one for 128 columns of a
    row, (1, 0) one for each row, (0, 0) one for the matrix. `zero` is the dtype of zero points and `minimum` that of
    the values to add, one for each block; "" if there are none. `outer` is the block of outer scales, in float32, by
    which scales and minimums are multiplied first; None if there are none. `index`: an additional array, int32
    [columns], assigns columns to blocks (GPTQ's `g_idx`). `input`: there is a static scale of activations, one value
    for the matrix, by which activations are divided before they are rounded to float8; it does not affect the weight.

    Computed in float32. Matrices of experts [e, rows, columns] have arrays of three dimensions as well.
    """

    codes: str
    block: Block
    scale: str = "float32"
    offset: int = 0
    zero: str = ""
    minimum: str = ""
    outer: Block | None = None
    table: tuple[float, ...] = ()
    index: bool = False
    input: bool = False

    def parts(self) -> Iterator[FormPart]:
        """The arrays that hold such a matrix, codes first."""
        yield FormPart("codes", self.codes, (1, 1))
        yield FormPart("scales", self.scale, self.block)
        if self.zero:
            yield FormPart("zeros", self.zero, self.block)
        if self.minimum:
            yield FormPart("minimums", self.minimum, self.block)
        if self.outer:
            yield FormPart("outer_scales", "float32", self.outer)
        if self.outer and self.minimum:
            yield FormPart("outer_minimums", "float32", self.outer)
        if self.input:
            yield FormPart("input_scales", "float32", (WHOLE, WHOLE))
        if self.index:
            yield FormPart("index", "int32", (WHOLE, 1))


def count(size: int, of: int) -> int:
    """The number of blocks of `of` values in an axis of `size`; the last may be shorter. WHOLE is one block."""
    return -(-size // of) if of else 1
