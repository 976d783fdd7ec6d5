"""The safetensors format: a length, a JSON header, then the tensors' bytes without gaps.

Format: https://github.com/huggingface/safetensors#format; the checks are those of its `tensor.rs`
(`read_metadata`, `Metadata::validate`), and tests compare the results of both.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Callable
from itertools import accumulate
from operator import attrgetter
from pathlib import Path
from typing import Any, cast

from bringup.adapters.checkpoints.bounded_json import MAX_TEXT, strict_json
from bringup.adapters.checkpoints.files import opened, other_content, refuse_lfs_pointer, too_short, truncated
from bringup.diagnostics import BringupError, did_you_mean, fail
from bringup.shown import short, shown
from bringup.spec import DTYPES, Shape, TensorInfo

MAX_HEADER = 100_000_000  # bytes; as in tensor.rs. From 32 MiB on `strict_json` rejects it
MAX_AXES = 64  # numpy's and torch's limit
MAX_NUMBER = 1 << 63  # of a size or an offset: the limit of a file

# Two F4 elements in each byte, low half first; the header's shape counts elements.
NAMES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu", "F4": "float4_e2m1fn",
    "I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8",
    "U64": "uint64", "U32": "uint32", "U16": "uint16", "U8": "uint8", "BOOL": "bool",
}  # fmt: skip
OTHERS = frozenset({"F8_E4M3FNUZ", "F8_E5M2FNUZ", "F6_E2M3", "F6_E3M2", "C64"})  # `Dtype` of tensor.rs has these too
TYPES = {published: DTYPES[ours] for published, ours in NAMES.items()}
Kind = tuple[str, Shape, int]  # bringup's dtype, shape, bytes
New = Callable[[type[TensorInfo], tuple[object, ...]], TensorInfo]
AGAIN = "the file is damaged or was not written by a safetensors library; fetch or save it again"


def read_header(path: Path) -> dict[str, TensorInfo]:
    """The tensors of a file, with offsets from the file's start. Raises BU206, BU208, BU211, BU212, BU233."""
    with opened(path) as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        head = file.read(8)
        length = struct.unpack("<Q", head)[0] if len(head) == 8 else 0
        if not 2 <= length <= min(MAX_HEADER, size - 8):
            refuse_lfs_pointer(path)
            if other := other_content(path):
                raise _bad_header(path, f"it is {other[0]}", other[1])
            if size > 8 and 2 <= length <= MAX_HEADER:
                raise truncated(path, 8 + length)
            raise _bad_header(path, too_short(path) or f"a header of {length} bytes is not possible")
        text = file.read(min(length, MAX_TEXT + 1))
    try:
        header = strict_json(text, finite=True, bulk=True)
    except ValueError as error:
        raise _bad_header(path, str(error)) from None
    del text
    _check_metadata(path, header.pop("__metadata__", {}))
    infos = _tensors(path, header, 8 + length)
    _check_layout(path, infos, 8 + length, size)
    return infos


def _check_metadata(path: Path, metadata: Any) -> None:
    if metadata is not None and not isinstance(metadata, dict):
        raise _bad_header(path, "`__metadata__` is not an object")
    if metadata and not all(isinstance(value, str) for value in cast("dict[str, object]", metadata).values()):
        raise _bad_header(path, "`__metadata__` holds more than strings by name")


def _tensors(path: Path, header: dict[str, Any], base: int) -> dict[str, TensorInfo]:
    """Every entry. An entry that differs from a checked one only in its offset is not checked again.

    A single loop without a call for each entry, because there may be 200,000.
    """
    infos: dict[str, TensorInfo] = {}
    kinds: dict[tuple[Any, ...], Kind] = {}
    make: New = tuple.__new__  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    name = ""
    try:
        for name, entry in header.items():
            written, listed, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
            kind = written, *listed, *map(type, (*listed, begin, end))  # 1, 1.0 and True are equal
            known = kinds.get(kind)
            if known is None or end - begin != known[2] or not 0 <= begin <= end < MAX_NUMBER:
                known = kinds[kind] = _kind(path, name, written, tuple(listed), begin, end)
            dtype, shape, nbytes = known
            infos[name] = make(TensorInfo, (name, dtype, shape, path, base + begin, nbytes, True, True))
    except (TypeError, KeyError, ValueError):
        raise _bad(path, name, "lacks a dtype, a shape or two data_offsets") from None
    return infos


def _kind(path: Path, name: str, written: Any, shape: tuple[Any, ...], begin: Any, end: Any) -> Kind:
    """A known dtype, and a size that matches it."""
    if len(shape) > MAX_AXES:
        raise _bad(path, name, f"has {len(shape):,} axes; the limit is {MAX_AXES}")
    if not all(type(number) is int and 0 <= number < MAX_NUMBER for number in (*shape, begin, end)):
        message = f"shape {shown(list(shape))} and data_offsets {shown([begin, end])}"
        raise _bad(path, name, f"has {message}; expected integers from 0 up to 2^63 - 1")
    dtype = TYPES.get(written) if isinstance(written, str) else None
    if isinstance(written, str) and written in OTHERS:
        help = f"save it in a dtype that bringup reads: {', '.join(TYPES)}"
        raise _bad(path, name, f"has dtype {shown(written)}, which bringup does not read", help)
    if dtype is None:
        known = f"known: {', '.join(TYPES)}"
        raise _bad(path, name, f"has dtype {shown(written)}", did_you_mean(str(written)[:20], TYPES) or known)
    bits = math.prod(shape) * dtype.bits
    if bits != (end - begin) * 8:
        size = f"{bits / 8:g} bytes" if bits < MAX_NUMBER else "more bytes than a file can have"
        raise _bad(path, name, f"is {written} {shown(list(shape))}: {size}; its data_offsets span {end - begin}")
    return dtype.name, shape, end - begin


def _check_layout(path: Path, infos: dict[str, TensorInfo], base: int, size: int) -> None:
    """Checks that tensors follow one another from the header's end to the file's end."""
    *begins, end = accumulate((info.nbytes for info in infos.values()), initial=base)
    if end == size and begins == [info.offset for info in infos.values()]:  # listed in order, as is usual
        return
    end, last = base, None
    for info in sorted(infos.values(), key=attrgetter("offset", "nbytes")):
        if info.offset != end:
            verb = "overlaps" if info.offset < end else "leaves a hole after"
            where = f"{f'`{short(last.name)}`' if last else 'the header'}, which ends at byte {end}"
            raise _bad(path, info.name, f"begins at byte {info.offset} and {verb} {where}")
        end, last = info.offset + info.nbytes, info
    if end > size:
        raise truncated(path, end)
    if end < size:
        raise _bad_header(path, f"{size - end} bytes follow the last tensor")


def _bad_header(path: Path, why: str, help: str = AGAIN) -> BringupError:
    return fail("BU211", f"`{path}` has no valid safetensors header: {why}", help=help, file=str(path))


def _bad(path: Path, name: str, why: str, help: str = "") -> BringupError:
    message = f"tensor `{short(name)}` of `{path}` {why}"
    return fail("BU212", message, help=help or AGAIN, file=str(path), sources=(name,))
