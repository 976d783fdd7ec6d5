"""Tensor maps: the 128 bytes that describe a tensor of up to five dimensions to the copy engine.

The layout is opaque on hardware (CUDA Driver API, "Tensor Map Object Management"; PTX ISA, "tensormap.replace"). The
emulator has its own layout with the same fields: tensormap.replace and `encode` write it, tensor copies read it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

TENSOR_MAP_BYTES = 128
FIELDS = {  # (offset, width) in bytes; of dimension 0 if there is one for each dimension
    "global_address": (0, 8),
    "rank": (8, 4),
    "box_dim": (12, 4),
    "global_dim": (32, 4),
    "global_stride": (56, 8),
    "element_stride": (96, 4),
    "elemtype": (116, 1),
    "swizzle_mode": (117, 1),
    "interleave_layout": (118, 1),
    "fill_mode": (119, 1),
}
# Indexed by the types of tensormap.replace (PTX ISA, table "Tensormap new_val validity"): u8 u16 u32 s32 u64 s64 f16
# f32 f32.ftz f64 bf16 tf32 tf32.ftz. In cuTensorMapEncodeTiled, 8 to 10 are f64 bf16 f32.ftz.
ELEMENT_BYTES = (1, 2, 4, 4, 8, 8, 2, 4, 4, 8, 2, 4, 4)
SWIZZLES = {0: 0, 1: 3, 2: 2, 3: 1}  # swizzle mode -> value in a wgmma descriptor: none, 32, 64, 128 bytes


@dataclass(frozen=True, slots=True)
class TensorMap:
    """A decoded tensor map. Dimensions are listed from the fastest; `strides` are in bytes, from dimension 1.

    `swizzle` is encoded as in a wgmma descriptor. `fill_nan`: elements outside the tensor are NaN, not zero.
    """

    address: int
    width: int
    box: tuple[int, ...]
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    element_strides: tuple[int, ...]
    swizzle: int
    interleave: int
    fill_nan: bool

    @classmethod
    def decode(cls, content: NDArray[np.uint8]) -> TensorMap:
        """Decodes 128 bytes. Raises ValueError if a field is out of range, as in memory without a tensor map."""
        rank = _read(content, "rank", 0) + 1
        kind, swizzle = _read(content, "elemtype", 0), _read(content, "swizzle_mode", 0)
        if rank > 5 or kind >= len(ELEMENT_BYTES) or swizzle not in SWIZZLES:
            raise ValueError("the 128 bytes are no tensor map")
        many = {
            name: tuple(_read(content, name, axis) for axis in range(rank))
            for name in ("box_dim", "global_dim", "element_stride")
        }
        return cls(
            address=_read(content, "global_address", 0),
            width=ELEMENT_BYTES[kind],
            box=many["box_dim"],
            dims=many["global_dim"],
            strides=tuple(_read(content, "global_stride", axis) for axis in range(rank - 1)),
            element_strides=many["element_stride"],
            swizzle=SWIZZLES[swizzle],
            interleave=_read(content, "interleave_layout", 0),
            fill_nan=bool(_read(content, "fill_mode", 0)),
        )


def encode(
    address: int,
    elemtype: int,
    dims: Sequence[int],
    strides: Sequence[int],
    box: Sequence[int],
    swizzle_mode: int,
    *,
    fill_nan: bool = False,
) -> NDArray[np.uint8]:
    """The 128 bytes of a tensor map, corresponding to the driver's cuTensorMapEncodeTiled.

    `elemtype` is encoded as in tensormap.replace. `dims` and `box` are listed from the fastest dimension, in elements;
    `strides` from the second, in bytes.
    """
    content = np.zeros(TENSOR_MAP_BYTES, np.uint8)
    write(content, "global_address", 0, address)
    write(content, "rank", 0, len(dims) - 1)
    write(content, "elemtype", 0, elemtype)
    write(content, "swizzle_mode", 0, swizzle_mode)
    write(content, "fill_mode", 0, int(fill_nan))
    for name, values in (("global_dim", dims), ("global_stride", strides), ("box_dim", box)):
        for axis, value in enumerate(values):
            write(content, name, axis, value)
    for axis in range(len(dims)):
        write(content, "element_stride", axis, 1)
    return content


def write(content: NDArray[np.uint8], name: str, axis: int, value: int) -> None:
    """Sets one field of the 128 bytes `content`; of dimension `axis` if there is one for each dimension."""
    offset, width = FIELDS[name]
    bits = (value & ((1 << 8 * width) - 1)).to_bytes(width, "little")
    content[offset + width * axis : offset + width * (axis + 1)] = np.frombuffer(bits, np.uint8)


def _read(content: NDArray[np.uint8], name: str, axis: int) -> int:
    offset, width = FIELDS[name]
    return int.from_bytes(content[offset + width * axis : offset + width * (axis + 1)].tobytes(), "little")
