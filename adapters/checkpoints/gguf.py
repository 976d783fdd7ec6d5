"""The GGUF format, versions 2 and 3: counts, key-value metadata, tensor infos, padding, the tensors' bytes.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md; the checks are those of ggml's `gguf.cpp`.
Arrays (a tokenizer's 300,000 strings) are skipped; `Metadata` reads their values on first use.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bringup.adapters.checkpoints.files import opened, refuse_lfs_pointer, too_short, truncated
from bringup.diagnostics import BringupError, fail

MAGIC = b"GGUF"
STRING, ARRAY, BOOL = 8, 9, 7
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "B", 10: "Q", 11: "q", 12: "d"}
LENGTH = struct.Struct("<Q")

# No published model comes near these limits; a header beyond them would take seconds and gigabytes to read.
MOST_BYTES = 64 << 20  # of a complete header; a vocabulary of 262,144 tokens with its merges takes 16 MiB
MOST_ELEMENTS = 1 << 21  # of all arrays together
MOST_ENTRIES = 1 << 15  # metadata keys, and tensors
MOST_NAME = 1 << 10  # bytes of a key or of a tensor's name
PAIR_BYTES, TENSOR_BYTES = 13, 24  # the least size of a key with its value, and of a tensor's entry


@dataclass(frozen=True, slots=True)
class Array:
    """The position of an array that was skipped."""

    kind: int
    count: int
    start: int


class Cursor:
    """A position in a GGUF file's header; each read advances it."""

    def __init__(self, path: Path, data: mmap.mmap | bytes, position: int = 0) -> None:
        self.path, self.data, self.position = path, data, position
        self.elements = 0  # of the arrays that were skipped

    def number(self, code: str) -> Any:
        """A little-endian number with this format character of `struct`."""
        (value,) = struct.unpack_from("<" + code, self.data, self._advance(struct.calcsize("<" + code)))
        return value

    def count(self, what: str, nbytes: int, limit: int = MOST_ENTRIES) -> int:
        """A count of items of at least `nbytes` each. Raises BU208, BU225 before any is read."""
        count = self.number("Q")
        self._need(count * nbytes)
        if count > limit:
            raise oversized(self.path, f"{count:,} {what}; the limit is {limit:,}")
        return count

    def text(self, limit: int = MOST_BYTES) -> str:
        """A string of at most `limit` bytes."""
        nbytes = self.number("Q")
        start = self._advance(nbytes)
        if nbytes > limit:
            raise oversized(self.path, f"a name of {nbytes:,} bytes; the limit is {limit:,}")
        try:
            return self.data[start : self.position].decode()
        except UnicodeDecodeError:
            raise bad_header(self.path, f"the string at byte {start} is not UTF-8") from None

    def value(self, kind: int) -> bool | int | float | str | Array:
        """A value of a GGUF type; for an array, its position."""
        if kind == STRING:
            return self.text()
        if kind == ARRAY:
            return self._array()
        if kind not in SCALARS:
            raise bad_header(self.path, f"a value before byte {self.position} has type {kind}, not one of GGUF's")
        value = self.number(SCALARS[kind])
        return bool(value) if kind == BOOL else value

    def _array(self) -> Array:
        kind = self.number("I")
        if kind not in SCALARS and kind != STRING:
            raise bad_header(self.path, f"an array before byte {self.position} holds values of type {kind}")
        nbytes = struct.calcsize("<" + SCALARS[kind]) if kind in SCALARS else LENGTH.size
        count = self.count("array elements", nbytes, MOST_ELEMENTS - self.elements)
        self.elements += count
        array = Array(kind, count, self.position)
        if kind == STRING:
            self._skip_strings(count)
        else:
            self._advance(count * nbytes)
        return array

    def _skip_strings(self, count: int) -> None:
        position, data, read = self.position, self.data, LENGTH.unpack_from
        try:
            for _ in range(count):
                position += 8 + read(data, position)[0]
        except (struct.error, OverflowError):
            raise truncated(self.path, position) from None
        self._advance(position - self.position)

    def _need(self, nbytes: int) -> None:
        if self.position + nbytes > len(self.data):
            raise truncated(self.path, self.position + nbytes)
        if self.position + nbytes > MOST_BYTES:
            raise oversized(self.path, f"more than {MOST_BYTES >> 20} MiB")

    def _advance(self, nbytes: int) -> int:
        self._need(nbytes)
        start, self.position = self.position, self.position + nbytes
        return start


class Metadata(Mapping[str, Any]):
    """The key-value pairs of a file. An array becomes a list on first use."""

    def __init__(self, path: Path, data: mmap.mmap | bytes, values: dict[str, Any]) -> None:
        self.path, self._data, self._values = path, data, values

    def __getitem__(self, key: str) -> Any:
        value = self._values[key]
        if not isinstance(value, Array):
            return value
        cursor = Cursor(self.path, self._data, value.start)
        if value.kind == STRING:
            return [cursor.text() for _ in range(value.count)]
        numbers = struct.unpack_from(f"<{value.count}{SCALARS[value.kind]}", self._data, value.start)
        return [bool(number) for number in numbers] if value.kind == BOOL else list(numbers)

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, key: object) -> bool:
        return key in self._values  # Mapping's own would read the array

    def scalar(self, key: str, default: Any = None) -> Any:
        """The value of a key, or `default` if it is absent. Raises BU221 for an array."""
        value = self._values.get(key, default)
        if isinstance(value, Array):
            raise bad_header(self.path, f"`{key}` is an array; expected a single value")
        return value

    def count(self, key: str) -> int | None:
        """The number of elements of a key's array, without reading them."""
        value = self._values.get(key)
        return value.count if isinstance(value, Array) else None


def metadata(path: Path) -> Metadata:
    """The key-value pairs of a GGUF file. Raises BU206, BU208, BU221, BU223, BU225."""
    return begin(path)[0]


def begin(path: Path, prefix: int = 0) -> tuple[Metadata, Cursor, int]:
    """The metadata, a cursor at the tensor infos, and the number of these.

    `prefix` is the number of bytes that are read of a file behind HTTP; a longer header raises BU208.
    """
    refuse_lfs_pointer(path)
    with opened(path) as file:
        if file.read(4) != MAGIC:
            raise bad_header(path, too_short(path) or "it does not begin with `GGUF`")
        file.seek(0)
        data = file.read(prefix) if prefix else mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    cursor = Cursor(path, data, 4)
    version = cursor.number("I")
    if version not in (2, 3):
        swapped = version & 0xFFFF == 0
        why = "big-endian bytes" if swapped else f"version {version}; 2 and 3 are supported"
        tool = "gguf-convert-endian (package gguf)" if swapped else "the present convert_hf_to_gguf.py"
        raise unsupported(path, f"has {why}", f"convert it with {tool}")
    num_tensors, num_keys = cursor.count("tensors", TENSOR_BYTES), cursor.count("keys", PAIR_BYTES)
    values: dict[str, Any] = {}
    for _ in range(num_keys):
        key = cursor.text(MOST_NAME)
        if key in values:
            raise bad_header(path, f"key `{key}` occurs twice in the metadata")
        values[key] = cursor.value(cursor.number("I"))
    return Metadata(path, data, values), cursor, num_tensors


def bad_header(path: Path, why: str) -> BringupError:
    help = "the file is damaged or was not written by a GGUF library; fetch or convert it again"
    return fail("BU221", f"`{path}` has no valid GGUF header: {why}", help=help, file=str(path))


def oversized(path: Path, what: str) -> BringupError:
    help = "no published model has this many: the file is damaged or malicious; download it again"
    return fail("BU225", f"the header of `{path}` has {what}", help=help, file=str(path))


def unsupported(path: Path, why: str, help: str) -> BringupError:
    return fail("BU223", f"`{path}` {why}", help=help, file=str(path))
