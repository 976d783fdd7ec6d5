"""The leaf of the import graph: dtypes, tensor headers and source sites. Standard library only."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Dtype:
    """An element type. `block` is (elements, bytes) for types stored in blocks (GGUF), else None."""

    name: str
    bits: int
    kind: str  # "float", "int", "uint", "bool" or "block"
    block: tuple[int, int] | None = None

    def nbytes(self, shape: Shape) -> int:
        """Bytes of a densely packed tensor of `shape`."""
        count = math.prod(shape)
        if self.block:
            return count // self.block[0] * self.block[1]
        return (count * self.bits + 7) // 8


def _plain(kind: str, **bits: int) -> dict[str, Dtype]:
    return {name: Dtype(name, width, kind) for name, width in bits.items()}


def _blocks(**layout: tuple[int, int, int]) -> dict[str, Dtype]:
    """From {name: (bits of a code, elements of a block, bytes of a block)}."""
    return {name: Dtype(name, bits, "block", (n, nbytes)) for name, (bits, n, nbytes) in layout.items()}


# Names are numpy's and ml_dtypes'. Block types follow ggml-common.h of llama.cpp: an fp16 scale (and an fp16
# minimum in the _1 types), then 32 codes; the _k types have 256 codes with scales of scales, the iq types indices
# into tables of codes, the tq types ternary digits.
DTYPES: dict[str, Dtype] = {
    **_plain("float", float64=64, float32=32, float16=16, bfloat16=16),
    **_plain("float", float8_e4m3fn=8, float8_e5m2=8, float8_e8m0fnu=8, float4_e2m1fn=4),
    **_plain("int", int64=64, int32=32, int16=16, int8=8, int4=4),
    **_plain("uint", uint64=64, uint32=32, uint16=16, uint8=8, uint4=4),
    **_plain("bool", bool=8),
    **_blocks(q8_0=(8, 32, 34), q4_0=(4, 32, 18), q4_1=(4, 32, 20), q5_0=(5, 32, 22), q5_1=(5, 32, 24)),
    **_blocks(q2_k=(2, 256, 84), q3_k=(3, 256, 110), q4_k=(4, 256, 144), q5_k=(5, 256, 176)),
    **_blocks(q6_k=(6, 256, 210), iq4_nl=(4, 32, 18), iq4_xs=(4, 256, 136), mxfp4=(4, 32, 17), nvfp4=(4, 64, 36)),
    **_blocks(iq1_s=(1, 256, 50), iq1_m=(1, 256, 56), iq2_xxs=(2, 256, 66), iq2_xs=(2, 256, 74), iq2_s=(2, 256, 82)),
    **_blocks(iq3_xxs=(3, 256, 98), iq3_s=(3, 256, 110), tq1_0=(2, 256, 54), tq2_0=(2, 256, 66)),
}


FLOATS = frozenset({"float64", "float32", "float16", "bfloat16"})  # converted into one another by rounding


class TensorInfo(NamedTuple):
    """A tensor in a checkpoint's header; `offset` and `nbytes` are bytes in `file`.

    `plain`: those bytes are the elements, in row-major order and little-endian. Otherwise (a transposed view, a
    compressed member) `offset` is where the stored bytes begin, `nbytes` the size of the tensor, and only its reader
    reads it.

    `fixed_rank`: the shape has exactly these dimensions. Otherwise the format does not record outer dimensions of 1
    reliably, and shapes that differ only in them are the same.

    A tuple, because there may be 200,000: it is created, hashed and compared in half a dataclass's time.
    """

    name: str
    dtype: str
    shape: Shape
    file: Path | None = None
    offset: int = 0
    nbytes: int = 0
    plain: bool = True
    fixed_rank: bool = True

    def shape_in(self, rank: int) -> Shape:
        """The shape in `rank` dimensions if it has as many but for outer ones of 1, which the format does not record.

        Rank 0 is unknown.
        """
        excess = len(self.shape) - rank
        if self.fixed_rank or rank == 0 or set(self.shape[: max(excess, 0)]) - {1}:
            return self.shape
        return (1,) * -excess + self.shape[max(excess, 0) :]


@dataclass(frozen=True, slots=True)
class Site:
    """A line of source code, for diagnostics."""

    file: str
    line: int

    @classmethod
    def outside(cls, *places: str) -> Site:
        """The innermost line of the call stack that is in none of `places`.

        A place is a file, as in its module's `__file__`, or a folder that ends in a separator. A user's file with the
        same name in another folder is not one of them.
        """
        frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]  inspect would cost 10 ms to import
        while frame.f_back and frame.f_code.co_filename.startswith(places):
            frame = frame.f_back
        return cls(frame.f_code.co_filename, frame.f_lineno)

    @property
    def path(self) -> str:
        """The file without links (bringup's folders also have links), relative to the current folder if below it."""
        path, here = Path(self.file).resolve(), Path.cwd()
        return str(path.relative_to(here) if path.is_relative_to(here) else path)

    def __str__(self) -> str:
        return f"{self.path}:{self.line}"
