"""Tensors whose bytes in the file are not their elements in order: strided views, big-endian and compressed ones."""

from __future__ import annotations

import math
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from bringup.adapters.checkpoints.files import opened
from bringup.diagnostics import BringupError, fail
from bringup.spec import DTYPES, Shape, TensorInfo

if TYPE_CHECKING:
    import numpy as np

MAX_NBYTES = 1 << 63
CHUNK = 1 << 20  # compressed bytes that are read at a time


class Stored(NamedTuple):
    """The storage of a tensor's elements: `strides` count elements, from the first of them.

    `span` bytes of the file contain them, from the tensor's `offset` on. With `skip` ≥ 0 these are a deflate stream
    (RFC 1951), in which that many bytes precede the elements.
    """

    strides: Shape
    span: int
    big_endian: bool = False
    skip: int = -1


def row_major(shape: Shape) -> Shape:
    """The strides, in elements, of a tensor in C order."""
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


def column_major(shape: Shape) -> Shape:
    """The strides, in elements, of a tensor in Fortran order."""
    return tuple(math.prod(shape[:axis]) for axis in range(len(shape)))


def is_addressable(shape: Shape, width: int) -> bool:
    """Whether numpy supports an array of this shape with elements of `width` bytes, also if it is empty."""
    return math.prod(size for size in shape if size) * width < MAX_NBYTES


def is_row_major(shape: Shape, strides: Shape) -> bool:
    """Whether elements are in C order; the stride of an axis of size 1 does not matter."""
    pairs = zip(shape, strides, row_major(shape), strict=True)
    return 0 in shape or all(size == 1 or stride == dense for size, stride, dense in pairs)


def extent(shape: Shape, strides: Shape) -> int:
    """The number of elements from the first to the last, with those in between."""
    return 0 if 0 in shape else 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))


def read_stored(info: TensorInfo, stored: Stored) -> np.ndarray:
    """The tensor of `info.shape`, in aligned memory of its own. Raises BU207, and BU209 for a damaged stream."""
    import numpy as np

    from bringup.adapters.checkpoints.arrays import aligned, loaded, numpy_dtype

    assert info.file is not None, "a header of a file"
    out = aligned(info.shape, info.dtype)
    if out.size == 0:
        return out
    if stored.skip < 0:
        raw = loaded(info.file, TensorInfo(info.name, "uint8", (stored.span,), info.file, info.offset, stored.span))
    else:
        raw = _inflated(info.file, info, stored)
    word = DTYPES[info.dtype].bits // 8
    units = raw.view(f"{'>' if stored.big_endian else '<'}u{word}")
    steps = [stride * word if size > 1 else 0 for size, stride in zip(info.shape, stored.strides, strict=True)]
    view = np.lib.stride_tricks.as_strided(units, info.shape, steps, writeable=False)
    out.view(f"u{word}")[...] = view
    assert out.dtype == numpy_dtype(info.dtype)
    return out


def _inflated(path: Path, info: TensorInfo, stored: Stored) -> np.ndarray:
    """The elements' bytes of a compressed member; no byte after them is inflated."""
    from bringup.adapters.checkpoints.arrays import aligned

    raw, end = aligned((info.nbytes,), "uint8"), 0
    stream, skip = zlib.decompressobj(-zlib.MAX_WBITS), stored.skip
    with opened(path) as file:
        file.seek(info.offset)
        left = stored.span
        while end < info.nbytes:
            piece = stream.unconsumed_tail or file.read(min(CHUNK, left))
            left -= 0 if stream.unconsumed_tail else len(piece)
            try:
                data = stream.decompress(piece, CHUNK)
            except zlib.error as error:
                raise damaged_stream(path, info.name, str(error)) from None
            if not data and (stream.eof or not piece):
                raise damaged_stream(path, info.name, "it ends early")
            data, skip = data[skip:], max(0, skip - len(data))
            data = data[: info.nbytes - end]
            raw[end : end + len(data)] = memoryview(data)
            end += len(data)
    return raw


def damaged_stream(path: Path, name: str, why: str) -> BringupError:
    """BU209 for a compressed member that does not match its archive's directory."""
    help = "the file is damaged: copy or download it again"
    return fail("BU209", f"`{name}` of `{path}` cannot be inflated: {why}", help=help, file=str(path), sources=(name,))
