"""The header of an `.npy` file: dtype, order and shape.

Format: numpy/lib/_format_impl.py (`numpy.lib.format`), versions 1 to 3. The header is a Python dict of three keys; it
is matched with a pattern, not evaluated. Arrays of objects are pickles and are rejected.
"""

from __future__ import annotations

import re
import struct
from pathlib import Path
from typing import NamedTuple

from bringup.adapters.checkpoints.stored import Stored, column_major, extent, is_addressable, is_row_major, row_major
from bringup.diagnostics import BringupError, fail
from bringup.shown import short, shown
from bringup.spec import DTYPES, Shape, TensorInfo

MAGIC = b"\x93NUMPY"
MAX_HEADER = 10_000  # bytes; numpy's own limit (`max_header_size`)
PREFIX = 12  # bytes of magic, version and length at most
MAX_AXES = 64
MAX_NUMBER = 1 << 62
DEFLATE_RATIO = 1040  # a match of 258 bytes takes two bits (RFC 1951), a block a few more
_ENTRY = r"""\s*['"](descr|fortran_order|shape)['"]\s*:\s*('[^']*'|"[^"]*"|True|False|\([\d\sL,]{0,2000}\))\s*"""
_HEADER = re.compile(rf"\{{{_ENTRY},{_ENTRY},{_ENTRY},?\s*\}}\s*")
_SHAPE = re.compile(r"\(\s*(?:\d{1,19}L?\s*,\s*)*(?:\d{1,19}L?\s*)?\)")
_DESCR = re.compile(r"([<>|=]?)([a-zA-Z])(\d{1,3})")
_KINDS = {"f": "float", "i": "int", "u": "uint"}
AGAIN = "the file is damaged or was not written by numpy.save; copy or save it again"


class Header(NamedTuple):
    """The fields of a header; `nbytes` is its own length, after which the elements begin."""

    dtype: str
    shape: Shape
    strides: Shape
    big_endian: bool
    nbytes: int


def header_nbytes(head: bytes) -> int:
    """The length of a header; 0 if these are not its first bytes."""
    if head[:6] != MAGIC or len(head) < PREFIX:
        return 0
    start, length = _place(head)
    return start + length


def _place(head: bytes) -> tuple[int, int]:
    """The offset of the dict in these first bytes of a file, and its length."""
    form = "<H" if head[6] == 1 else "<I"
    return 8 + struct.calcsize(form), struct.unpack_from(form, head, 8)[0]


def parse_header(path: Path, name: str, head: bytes) -> Header:
    """The header at the start of an array's bytes; `name` is the tensor's. Raises BU210."""
    if head[:6] != MAGIC or len(head) < PREFIX:
        raise bad(path, name, "has no header of numpy")
    if head[6] not in (1, 2, 3):
        raise bad(path, name, f"is of version {head[6]} of the format; 1, 2 and 3 are supported")
    start, length = _place(head)
    if length > MAX_HEADER or start + length > len(head):
        raise bad(path, name, f"has a header of {length:,} bytes, which does not fit")
    try:
        text = head[start : start + length].decode("utf-8" if head[6] == 3 else "latin-1")
    except UnicodeDecodeError:
        raise bad(path, name, "has a header that is not UTF-8") from None
    match = _HEADER.fullmatch(text)
    words = dict(zip(match.groups()[::2], match.groups()[1::2], strict=True)) if match else {}
    if len(words) < 3:
        if re.search(r"['\"]descr['\"]\s*:\s*\[", text):
            raise bad(path, name, "has several fields an element", "save one array for each field")
        raise bad(path, name, f"has a header that cannot be read: {shown(text)}")
    dtype, big_endian = _dtype(path, name, words["descr"][1:-1])
    shape = _shape(path, name, words["shape"])
    if words["fortran_order"] not in ("True", "False"):
        raise bad(path, name, "does not state the order of its elements")
    strides = column_major(shape) if words["fortran_order"] == "True" else row_major(shape)
    return Header(dtype, shape, strides, big_endian, start + length)


def _dtype(path: Path, name: str, written: str) -> tuple[str, bool]:
    """bringup's dtype for an array-protocol type string, and whether it is big-endian."""
    if written == "<V2":  # numpy writes only ml_dtypes' bfloat16 like this: bytes of its own are "|V2"
        return "bfloat16", False
    match = _DESCR.fullmatch(written)
    if written in DTYPES and not DTYPES[written].block and DTYPES[written].bits >= 8:  # ml_dtypes' names
        return written, False
    if match is None or match[2] in "OV":
        what = "objects, which are a pickle" if written.endswith("O") else f"elements of dtype {shown(written)}"
        raise bad(path, name, f"holds {what}", "save it as numbers, or as safetensors")
    order, kind, width = match[1], match[2], int(match[3])
    found = "bool" if (kind, width) == ("b", 1) else f"{_KINDS.get(kind, '?')}{8 * width}"
    if found not in DTYPES:
        raise bad(path, name, f"holds elements of dtype {shown(written)}", "save it as numbers, or as safetensors")
    return found, order == ">" and width > 1


def _shape(path: Path, name: str, written: str) -> Shape:
    if not _SHAPE.fullmatch(written):
        raise bad(path, name, f"has shape {shown(written)}")
    shape = tuple(int(size) for size in re.findall(r"\d+", written))
    if len(shape) > MAX_AXES or any(size >= MAX_NUMBER for size in shape):
        raise bad(path, name, f"has shape {shown(shape)}")
    return shape


def located(
    path: Path, name: str, header: Header, offset: int, room: int, packed: int = -1
) -> tuple[TensorInfo, Stored | None]:
    """The tensor of an array whose bytes, with the header, begin at `offset`; `room` is their number.

    `packed` is the length of the deflate stream that contains them, -1 without one. Raises BU210.
    """
    width = DTYPES[header.dtype].bits // 8
    if not is_addressable(header.shape, width):
        raise bad(path, name, f"has shape {shown(header.shape)}")
    if packed >= 0 and room > DEFLATE_RATIO * (packed + 1):
        raise bad(path, name, f"has {room:,} bytes in a deflate stream of {packed:,}, which is not possible")
    nbytes = DTYPES[header.dtype].nbytes(header.shape)
    if header.nbytes + nbytes != room:
        raise bad(path, name, f"has {room - header.nbytes} bytes of elements; {list(header.shape)} needs {nbytes}")
    plain = packed < 0 and is_row_major(header.shape, header.strides) and not header.big_endian
    if packed >= 0:
        stored = Stored(header.strides, packed, header.big_endian, skip=header.nbytes)
        return TensorInfo(name, header.dtype, header.shape, path, offset, nbytes, plain=False), stored
    info = TensorInfo(name, header.dtype, header.shape, path, offset + header.nbytes, nbytes, plain)
    span = extent(header.shape, header.strides) * width
    return info, None if plain else Stored(header.strides, span, header.big_endian)


def bad(path: Path, name: str, why: str, help: str = AGAIN) -> BringupError:
    """BU210 for an array that cannot be read."""
    return fail("BU210", f"array `{short(name)}` of `{path}` {why}", help=help, file=str(path), sources=(name,))
