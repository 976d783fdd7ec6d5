"""How a matrix is held in few bits: codes, and what turns them into numbers.

One description for all published schemes: float8 and float4 with scales, integers with scales and zero points (AWQ,
GPTQ, compressed-tensors), tables of values (bitsandbytes' nf4), blocks of GGUF.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

Block = tuple[int, int]  # rows and columns of a matrix

WHOLE = 0  # of a block: all rows, or all columns


class FormPart(NamedTuple):
    """One array of a form: `name`, `dtype`, and how many rows and columns have one value; 0 stands for all of them."""

    name: str
    dtype: str
    block: Block


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """value = (code - offset - zero) · (scale · outer scale) + minimum · outer minimum, in a matrix [rows, columns].

    `codes` is the dtype of the codes; with a `table`, codes are indices into it and its entry takes the code's place.
    `scale` is the dtype of the scales, one for each `block` of rows and columns: (1, 128) is one for 128 columns of a
    row, (1, 0) one for each row, (0, 0) one for the matrix. `zero` is the dtype of zero points and `minimum` that of
    what is added, one a block each; "" where there are none. `outer` is the block of further scales, in float32, which
    scales, and minimums where there are any, are multiplied by first; None where there are none. `index`: which block
    of columns a column belongs to is an array of its own (GPTQ's `g_idx`), int32 [columns]. `input`: there is what
    activations are divided by to be float8, one number for the matrix, which no weight is computed from.

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
    """How many blocks of `of` values cut an axis of `size`; the last may be short. WHOLE is one block."""
    return -(-size // of) if of else 1
