"""A parameter of any dimensions in few bits: a matrix's form, once rules have moved the matrix to where it belongs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

from bringup.graphs.core.form import Form, FormPart
from bringup.spec import DTYPES, Shape

WORD_VALUES = (8, 2)  # 4-bit codes side by side in a word: int32, or uint8 where 8 do not divide the axis


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedForm:
    """How the arrays of a parameter of `shape` are read.

    `block` is how many indices of each dimension have one scale, zero and minimum, `outer` that of outer scales, and
    `input` that of scales of activations.
    `indexed` is the dimension that the form's index is along: there `block` is 1, and scales have a place for each
    block of the index; -1 where there is no index, and `groups` is how many of them there are. `dtypes` are the parts'
    as the checkpoint stores them, in the order of `form.parts()`; `dtype` is that of products with the parameter.
    """

    form: Form
    shape: Shape
    block: Shape
    outer: Shape
    indexed: int
    groups: int
    dtypes: tuple[str, ...]
    dtype: str
    input: Shape = ()

    def block_of(self, part: FormPart) -> Shape:
        """How many indices of each dimension have one value of a part."""
        if part.name == "codes":
            return (1,) * len(self.shape)
        if part.name == "input_scales":
            return self.input
        return self.outer if part.name.startswith("outer") else self.block

    def shape_of(self, part: FormPart) -> Shape:
        """The shape of a part's array, its elements not yet in words."""
        if part.name == "index":
            return (self.shape[self.indexed],)
        sizes = [-(-size // block) for size, block in zip(self.shape, self.block_of(part), strict=True)]
        if self.indexed >= 0 and part.name != "codes" and not part.name.startswith("outer"):
            sizes[self.indexed] = self.groups
        return tuple(sizes)

    @property
    def pack(self) -> tuple[int, int]:
        """The dimension along which codes stand in words, and how many; one where they stand alone.

        Not the last dimension, where another fits: what neighbours of a row are made of then are neighbours as well.
        """
        if DTYPES[self.dtypes[0]].bits != 4:
            return 0, 1
        axes = [len(self.shape) - 2, len(self.shape) - 1]
        found = [(axis, values) for values in WORD_VALUES for axis in axes if self.shape[axis] % values == 0]
        return found[0] if found else (0, 1)

    def stored_dtype(self, number: int) -> str:
        """The dtype of the elements of a part's array: of narrow floats, and of sub-byte numbers apart, their bits."""
        dtype = DTYPES[self.dtypes[number]]
        if dtype.bits < 8:
            return "uint4" if number == 0 and self.pack[1] > 1 else "uint8"
        return "uint8" if dtype.kind == "float" and dtype.bits == 8 else dtype.name

    @property
    def is_fp8(self) -> bool:
        """Whether it is float8 e4m3 times scales that are stored as floats, and nothing else."""
        form = self.form
        plain = not (form.zero or form.minimum or form.outer or form.table or form.index or form.offset)
        return plain and self.dtypes[0] == "float8_e4m3fn" and not self.scale_table

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays; tables apart, which are a few numbers."""
        parts = enumerate(self.form.parts())
        return sum(DTYPES[self.stored_dtype(number)].nbytes(self.shape_of(part)) for number, part in parts)

    @property
    def table(self) -> tuple[float, ...]:
        """The numbers that codes stand for; () where they are whole numbers."""
        return self.form.table or numbers_of(self.dtypes[0])

    @property
    def scale_table(self) -> tuple[float, ...]:
        """The numbers that scales stand for; () where they are stored as numbers."""
        return numbers_of(self.dtypes[1])


@cache
def numbers_of(dtype: str) -> tuple[float, ...]:
    """What each code of a float of at most 8 bits stands for; () for other dtypes.

    From the layouts in the OCP 8-bit floating point specification, and the OCP Microscaling Formats specification 1.0.
    """
    match dtype:
        case "float8_e8m0fnu":
            return (*(math.ldexp(1.0, code - 127) for code in range(255)), math.nan)
        case "float8_e4m3fn":
            half = [*_minifloat(4, 3)[:-1], math.nan]
        case "float8_e5m2":
            half = [*_minifloat(5, 2)[:-4], math.inf, math.nan, math.nan, math.nan]
        case "float4_e2m1fn":
            half = _minifloat(2, 1)
        case _:
            return ()
    return (*half, *(-number for number in half))


def _minifloat(exponent: int, mantissa: int) -> list[float]:
    """The numbers that are not negative, in the order of their codes, all exponents finite."""
    bias, steps = 2 ** (exponent - 1) - 1, 2**mantissa
    found: list[float] = []
    for code in range(2 ** (exponent + mantissa)):
        high, low = divmod(code, steps)
        found.append(math.ldexp(low + (steps if high else 0), max(high, 1) - bias - mantissa))
    return found
