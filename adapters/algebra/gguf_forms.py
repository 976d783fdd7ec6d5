"""The block types of GGUF as forms: codes and scales of a tensor's blocks as separate arrays.

Fields and their order in a block are from ggml-common.h, their unpacking from dequantize_row_* in ggml-quants.c
(ggml-org/llama.cpp). Most fields are movements of bytes; those whose bits cross bytes are computed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from bringup.adapters.algebra.computed import Computed
from bringup.adapters.algebra.region import Region
from bringup.adapters.algebra.scope import Scope
from bringup.graphs.core.axes import Axis
from bringup.graphs.core.form import Form
from bringup.spec import DTYPES

if TYPE_CHECKING:
    import numpy as np

    Run = Callable[[np.ndarray], np.ndarray]
else:
    Run = Callable

# kvalues_iq4nl of ggml-common.h.
IQ4_NL = (-127.0, -104.0, -83.0, -65.0, -49.0, -35.0, -22.0, -10.0, 1.0, 13.0, 25.0, 38.0, 53.0, 69.0, 89.0, 113.0)
_SUPER = (1, 256)  # the block that shares the scales of scales in the _k types


def _of_32(codes: str, **more: object) -> Form:
    return replace(Form(codes=codes, block=(1, 32), scale="float16"), **more)


FORMS: dict[str, Form] = {
    "q4_0": _of_32("uint4", offset=8),
    "q4_1": _of_32("uint4", minimum="float16"),
    "q5_0": _of_32("uint8", offset=16),
    "q5_1": _of_32("uint8", minimum="float16"),
    "q8_0": _of_32("int8"),
    "iq4_nl": _of_32("uint4", table=IQ4_NL),
    "mxfp4": _of_32("float4_e2m1fn", scale="float8_e8m0fnu"),
    "q4_k": _of_32("uint4", scale="uint8", minimum="uint8", outer=_SUPER),
    "q5_k": _of_32("uint8", scale="uint8", minimum="uint8", outer=_SUPER),
    "q6_k": Form(codes="uint8", block=(1, 16), scale="int8", offset=32, outer=_SUPER),
}


def with_form(computed: Computed, dtype: str, scope: Scope) -> Computed:
    """A dequantised GGUF tensor with the arrays of its form; unchanged for types without a form."""
    form = FORMS.get(dtype)
    if form is None or len(computed.shape) < 2:
        return computed
    blocks = _Blocks(computed.inputs[0], dtype, scope)
    arrays = tuple(getattr(blocks, part.name)() for part in form.parts())
    return replace(computed, form=form, arrays_of_form=arrays)


@dataclass(frozen=True)
class _Blocks:
    """The blocks of a tensor: `rows` of bytes [..., byte]."""

    rows: Region
    dtype: str
    scope: Scope

    def codes(self) -> Region:
        match self.dtype:
            case "q4_0" | "iq4_nl":
                return self._nibbles(2)
            case "q4_1":
                return self._nibbles(4)
            case "mxfp4":
                return self._nibbles(1)
            case "q4_k":
                return self._nibbles(16, chunks=4)
            case "q8_0":
                return self._rows(self._field(2, 34).bits("int8", ""))
            case _:
                return self._computed(0, self._nbytes, _CODES[self.dtype], "uint8", self._width)

    def scales(self) -> Region:
        match self.dtype:
            case "q4_k" | "q5_k":
                return self._computed(4, 16, _scales_k, "uint8", 8)
            case "q6_k":
                return self._rows(self._field(192, 208).bits("int8", ""))
            case "mxfp4":
                return self._rows(self._field(0, 1).bits("float8_e8m0fnu", ""))
            case _:
                return self._number(0)

    def minimums(self) -> Region:
        return self._computed(4, 16, _minimums_k, "uint8", 8) if self.dtype.endswith("_k") else self._number(2)

    def outer_scales(self) -> Region:
        return self._number(208 if self.dtype == "q6_k" else 0)

    def outer_minimums(self) -> Region:
        """The scale of minimums, negated, because ggml subtracts them."""
        return self._computed(2, 4, _negated, "float16", 1)

    @property
    def _nbytes(self) -> int:
        return (DTYPES[self.dtype].block or (1, 1))[1]

    @property
    def _width(self) -> int:
        return (DTYPES[self.dtype].block or (1, 1))[0]

    def _field(self, start: int, stop: int) -> Region:
        """Some bytes of every block: [..., block, byte]."""
        *leading, row = self.rows.shape
        outer = [Axis(f"d{k}", size) for k, size in enumerate(leading)]
        block, byte = Axis("block", row // self._nbytes), Axis("byte", self._nbytes)
        region = self.rows.rearrange((*outer, Axis("row", row, (block, byte))), (*outer, block, byte))
        return region.window(len(outer) + 1, start, stop)

    def _nibbles(self, start: int, *, chunks: int = 1) -> Region:
        """Codes of 4 bits from `start` to the end: of each chunk first the low halves of all bytes, then the high."""
        return self._flat(self._field(start, self._nbytes).bits(FORMS[self.dtype].codes, "half"), chunks)

    def _number(self, start: int) -> Region:
        """A float16 of every block: [..., block]."""
        return self._field(start, start + 2).bits("float16", "")

    def _flat(self, region: Region, chunks: int) -> Region:
        """[..., block, byte, part] as rows [..., block · part · byte], separately for each chunk of bytes."""
        *leading, blocks, size, parts = region.shape
        outer = [Axis(f"d{k}", n) for k, n in enumerate(leading)]
        block, chunk, byte, part = (
            Axis("block", blocks), Axis("chunk", chunks), Axis("byte", size // chunks), Axis("part", parts)
        )  # fmt: skip
        row = Axis("row", blocks * size * parts, (block, chunk, part, byte))
        return region.rearrange((*outer, block, Axis("bytes", size, (chunk, byte)), part), (*outer, row))

    def _computed(self, start: int, stop: int, run: Run, dtype: str, values: int) -> Region:
        """The results of `run` on some bytes of every block: `values` of each, in rows."""
        bytes_ = self._field(start, stop)
        *leading, blocks, size = bytes_.shape
        shape = (*leading, blocks * values)
        region = self._rows(bytes_)
        grains = ((*((1, 1) for _ in leading), (values, size)),)
        name = f"{self.dtype}: {run.__name__.lstrip('_')}"
        value = Computed(name, (region,), shape, dtype, _ByBlock(run, size), exact=True, grains=grains)
        return self.scope.whole(value, tuple(Axis(f"d{k}", n) for k, n in enumerate(shape)))

    def _rows(self, region: Region) -> Region:
        """[..., block, value] as rows."""
        *leading, blocks, size = region.shape
        outer = [Axis(f"d{k}", n) for k, n in enumerate(leading)]
        block, byte = Axis("block", blocks), Axis("byte", size)
        return region.rearrange((*outer, block, byte), (*outer, Axis("row", blocks * size, (block, byte))))


@dataclass(frozen=True, slots=True)
class _ByBlock:
    """`run` on each block of `size` bytes: rows [..., byte] become rows [..., value]."""

    run: Run
    size: int

    def __call__(self, data: np.ndarray) -> np.ndarray:
        values = self.run(data.reshape(-1, self.size))
        return values.reshape(*data.shape[:-1], -1)


def _scales_k(blocks: np.ndarray) -> np.ndarray:
    """[block, 12] → [block, 8], 6 bits each: get_scale_min_k4."""
    import numpy as np

    low, high = blocks[:, :4] & 63, (blocks[:, 8:] & 15) | (blocks[:, :4] >> 6) << 4
    return np.concatenate([low, high], axis=1)


def _minimums_k(blocks: np.ndarray) -> np.ndarray:
    """[block, 12] → [block, 8], 6 bits each: get_scale_min_k4."""
    import numpy as np

    low, high = blocks[:, 4:8] & 63, (blocks[:, 8:] >> 4) | (blocks[:, 4:8] >> 6) << 4
    return np.concatenate([low, high], axis=1)


def _negated(blocks: np.ndarray) -> np.ndarray:
    """[block, 2] → [block, 1] float16."""
    import numpy as np

    return -np.ascontiguousarray(blocks).view(np.float16)


def _codes_5(start: int) -> Run:
    """Codes of 5 bits, whose highest bits are the bits of four bytes at `start`; 16 bytes of nibbles follow."""

    def codes(blocks: np.ndarray) -> np.ndarray:
        import numpy as np

        bits = np.unpackbits(np.ascontiguousarray(blocks[:, start : start + 4]), axis=1, bitorder="little")
        nibbles = blocks[:, start + 4 :]
        return np.concatenate([nibbles & 15, nibbles >> 4], axis=1) | bits << 4

    return codes


def _codes_5_k(blocks: np.ndarray) -> np.ndarray:
    """[block, 176] → [block, 256]: bit 2j of byte l is the highest bit of value l of the low halves of chunk j, bit
    2j + 1 that of the high halves."""
    import numpy as np

    high, nibbles = blocks[:, None, 16:48], blocks[:, 48:].reshape(len(blocks), 4, 32)
    shifts = np.arange(4, dtype=np.uint8)[None, :, None] * 2
    low = (nibbles & 15) | (high >> shifts & 1) << 4
    top = (nibbles >> 4) | (high >> (shifts + 1) & 1) << 4
    return np.stack([low, top], axis=2).reshape(len(blocks), 256)


def _codes_6_k(blocks: np.ndarray) -> np.ndarray:
    """[block, 210] → [block, 256]: each half has 64 bytes of low and high nibbles, and 32 bytes of two-bit fields."""
    import numpy as np

    low, high = blocks[:, :128].reshape(len(blocks), 2, 64), blocks[:, 128:192].reshape(len(blocks), 2, 32)
    parts = [
        (low[..., :32] & 15) | (high & 3) << 4,
        (low[..., 32:] & 15) | (high >> 2 & 3) << 4,
        (low[..., :32] >> 4) | (high >> 4 & 3) << 4,
        (low[..., 32:] >> 4) | (high >> 6) << 4,
    ]
    return np.stack(parts, axis=2).reshape(len(blocks), 256)


_CODES: dict[str, Run] = {"q5_0": _codes_5(2), "q5_1": _codes_5(4), "q5_k": _codes_5_k, "q6_k": _codes_6_k}
