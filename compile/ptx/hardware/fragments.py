"""The layout of the elements of matrices in registers and shared memory.

Fragments of mma: PTX ISA, "Matrix Fragments for mma.m16n8k8 ... m16n8k32"; lane l is (g, t) = (l / 4, l % 4).
Tiles of wgmma: PTX ISA, "Asynchronous Warpgroup Level Matrix Shared Memory Layout" and "Matrix Descriptor Format".
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bringup.compile.ptx.hardware.values import E4M3, E5M2

Array = NDArray[Any]
WIDTHS = {"f16": 2, "bf16": 2, "tf32": 4, "s8": 1, "u8": 1, "e4m3": 1, "e5m2": 1}
_TF32_BITS = np.uint32(0xFFFFE000)  # 10 bits of mantissa; hardware ignores the lower 13


def elements(words: Array, kind: str) -> Array:
    """uint32 words (...) -> float32 elements (..., n), lowest bits first. int8 is exact in float32 too."""
    packed = np.ascontiguousarray(words)[..., None]
    width = WIDTHS[kind]
    return numbers(packed if width == 4 else packed.view(np.uint16 if width == 2 else np.uint8), kind)


def numbers(bits: Array, kind: str) -> Array:
    """Bit patterns, as unsigned integers of the element's width -> float32 elements."""
    match kind:
        case "bf16":
            return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
        case "f16":
            return bits.view(np.float16).astype(np.float32)
        case "tf32":
            return (bits & _TF32_BITS).view(np.float32)
        case "s8":
            return bits.view(np.int8).astype(np.float32)
        case "u8":
            return bits.astype(np.float32)
        case _:
            return (E4M3 if kind == "e4m3" else E5M2)[bits]


def left_fragment(registers: Array, kind: str) -> Array:
    """A: (lanes, n) words of complete warps -> (warps, 16, k). Register r has rows g + 8 (r % 2), half r / 2 of k."""
    values = elements(registers, kind)  # lanes, n, e
    count, per_word = values.shape[-2:]
    parts = values.reshape(-1, 8, 4, count // 2, 2, per_word)  # warp g t half row e
    return parts.transpose(0, 4, 1, 3, 2, 5).reshape(-1, 16, count // 2 * 4 * per_word)


def right_fragment(registers: Array, kind: str) -> Array:
    """B, transposed: (lanes, n) words -> (warps, 8, k). Lane (g, t) has column g."""
    values = elements(registers, kind)
    count, per_word = values.shape[-2:]
    return values.reshape(-1, 8, 4, count, per_word).transpose(0, 1, 3, 2, 4).reshape(-1, 8, count * 4 * per_word)


@dataclass(frozen=True, slots=True)
class Descriptor:
    """A matrix descriptor of wgmma. Offsets are in bytes. `swizzle`: 0 none, 1 128 bytes, 2 64 bytes, 3 32 bytes."""

    start: int
    leading: int
    stride: int
    base: int
    swizzle: int

    @classmethod
    def decode(cls, bits: int) -> Descriptor:
        """The fields of the 64-bit descriptor: bits 0-13, 16-29, 32-45 (in units of 16 bytes), 49-51, 62-63."""
        bits &= (1 << 64) - 1
        start, leading, stride = ((bits >> shift & 0x3FFF) << 4 for shift in (0, 16, 32))
        return cls(start, leading, stride, bits >> 49 & 7, bits >> 62)

    def addresses(self, extent: int, depth: int, width: int, *, transposed: bool) -> NDArray[np.int64]:
        """Shared memory addresses (extent, depth) of the elements of a tile: `extent` along M or N, `depth` along K."""
        return swizzled(self.start + _tile(self, extent, depth, width, transposed), self.swizzle)


_PITCH = {0: 16, 1: 128, 2: 64, 3: 32}
_SWIZZLE_BITS = {1: 7, 2: 3, 3: 1}


def swizzled(addresses: NDArray[np.int64], swizzle: int) -> NDArray[np.int64]:
    """Swizzled addresses: bits 4-6 are xored with bits 7-9, as many as the swizzle has. The period is 1024 bytes."""
    if not swizzle:
        return addresses
    return addresses ^ (((addresses >> 7) & _SWIZZLE_BITS[swizzle]) << 4)


@lru_cache(maxsize=256)
def _tile(descriptor: Descriptor, extent: int, depth: int, width: int, transposed: bool) -> NDArray[np.int64]:
    """Offsets from the start of the tile, before the swizzle. Core matrices are 8 rows of 16 bytes.

    K-major: the stride offset is between groups of 8 rows, the leading offset between core matrices along K (only
    without a swizzle). M- or N-major (`transposed`): the leading offset is between swizzle atoms along M or N, the
    stride offset between groups of 8 along K.
    """
    row, column = np.arange(extent, dtype=np.int64)[:, None], np.arange(depth, dtype=np.int64)[None, :]
    pitch = _PITCH[descriptor.swizzle]
    if transposed:
        per_atom = pitch // width
        within = column % 8 * pitch + row % per_atom * width
        return row // per_atom * descriptor.leading + column // 8 * descriptor.stride + within
    groups = row // 8 * descriptor.stride + row % 8 * pitch
    if descriptor.swizzle:
        return groups + column * width
    return groups + column * width // 16 * descriptor.leading + column * width % 16
