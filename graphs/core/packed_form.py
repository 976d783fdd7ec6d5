"""A packed parameter of any number of dimensions: the form of a matrix after the movements of a rule."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

from bringup.graphs.core.form import Form, FormPart
from bringup.spec import DTYPES, Shape

WORD_VALUES = (8, 2)  # 4-bit codes in a word: int32, or uint8 if 8 does not divide the axis


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedForm:
    """How the arrays of a parameter of `shape` are read.

    `block` is the number of indices of each dimension that share a scale, zero and minimum, `outer` that of outer
    scales, `input` that of scales of activations. `indexed` is the dimension of the form's index, -1 without one:
    `block` is 1 there, and scales have `groups` entries. `dtypes` are those of the parts as the checkpoint stores them,
    in the order of `form.parts()`; `dtype` is that of products with the parameter.
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
        """The number of indices of each dimension that share a value of a part."""
        if part.name == "codes":
            return (1,) * len(self.shape)
        if part.name == "input_scales":
            return self.input
        return self.outer if part.name.startswith("outer") else self.block

    def shape_of(self, part: FormPart) -> Shape:
        """The shape of a part's array, before elements are packed into words."""
        if part.name == "index":
            return (self.shape[self.indexed],)
        sizes = [-(-size // block) for size, block in zip(self.shape, self.block_of(part), strict=True)]
        if self.indexed >= 0 and part.name != "codes" and not part.name.startswith("outer"):
            sizes[self.indexed] = self.groups
        return tuple(sizes)

    @property
    def pack(self) -> tuple[int, int]:
        """The dimension along which codes are packed into words, and the number of codes in a word; 1 if unpacked.

        Another dimension than the last is preferred: adjacent elements of a row then have adjacent codes.
        """
        if DTYPES[self.dtypes[0]].bits != 4:
            return 0, 1
        axes = [len(self.shape) - 2, len(self.shape) - 1]
        found = [(axis, values) for values in WORD_VALUES for axis in axes if self.shape[axis] % values == 0]
        return found[0] if found else (0, 1)

    def stored_dtype(self, number: int) -> str:
        """The dtype of a part's array; narrow floats and unpacked sub-byte values are stored as bits."""
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
        """Bytes of all arrays, without tables, which have a few elements."""
        parts = enumerate(self.form.parts())
        return sum(DTYPES[self.stored_dtype(number)].nbytes(self.shape_of(part)) for number, part in parts)

    @property
    def table(self) -> tuple[float, ...]:
        """The values of codes; () if codes are integers."""
        return self.form.table or numbers_of(self.dtypes[0])

    @property
    def scale_table(self) -> tuple[float, ...]:
        """The values of scale codes; () if scales are stored as values."""
        return numbers_of(self.dtypes[1])


@cache
def numbers_of(dtype: str) -> tuple[float, ...]:
    """The value of each code of a float of at most 8 bits; () for other dtypes.

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
    """The non-negative values, in the order of their codes; all exponents are finite."""
    bias, steps = 2 ** (exponent - 1) - 1, 2**mantissa
    found: list[float] = []
    for code in range(2 ** (exponent + mantissa)):
        high, low = divmod(code, steps)
        found.append(math.ldexp(low + (steps if high else 0), max(high, 1) - bias - mantissa))
    return found
