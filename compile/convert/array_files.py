"""Files of named arrays that are written one array at a time, in any order: safetensors and .npz.

Formats: https://github.com/huggingface/safetensors#format; a .npz file is a zip of .npy files, numpy.lib.format.
"""

from __future__ import annotations

import json
import os
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from bringup.adapters.checkpoints.arrays import bytes_of
from bringup.adapters.checkpoints.safetensors import NAMES
from bringup.compile.convert.npz_file import NpzFile
from bringup.compile.convert.placed_bytes import PlacedBytes
from bringup.diagnostics import fail
from bringup.spec import DTYPES, TensorInfo
from bringup.system.os_errors import unwritable

if TYPE_CHECKING:
    import numpy as np

ALIGN = 64
FORMATS = ("safetensors", "npz")
PUBLISHED = {ours: published for published, ours in NAMES.items()}
# The dtypes that numpy can store. It writes those of ml_dtypes as raw bytes, without a record of the dtype.
IN_NPZ = frozenset(
    {"float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8", "bool"}
)


class ArrayFile(Protocol):
    """A file that is being written."""

    def put(self, name: str, array: np.ndarray) -> memoryview:
        """Writes one array; returns its bytes as they are stored."""
        ...

    def stored(self, name: str) -> Iterator[bytes]:
        """The bytes in the file for an array that is not written yet: those of an earlier run."""
        ...

    def skip(self, name: str) -> None:
        """Keeps an array that is in the file, after `stored` returned all of it."""
        ...

    def flush(self) -> None:
        """Returns when all arrays written so far are on disk."""
        ...


@contextmanager
def array_file(
    path: Path,
    tensors: Sequence[TensorInfo],
    form: str = "safetensors",
    metadata: Mapping[str, str] | None = None,
    header: bytes = b"",
    again: bool = False,
) -> Generator[ArrayFile]:
    """A new file that contains all of `tensors` when the block ends; each must be written once.

    `header` is that of a safetensors file with the same tensors, which is then reproduced. `again`: an existing file
    with the same arrays is continued. Raises BU139 for a dtype that the format does not support, BU901 and BU902.
    """
    known = IN_NPZ if form == "npz" else PUBLISHED
    for info in tensors:
        if info.dtype not in known:
            help = "choose --format safetensors, or --dtype float32" if form == "npz" else "choose another --dtype"
            raise fail("BU139", f"`{info.name}` is {info.dtype}, which .{form} files do not have", help=help)
    try:
        with (
            _npz(path, tensors, again)
            if form == "npz"
            else _safetensors(path, tensors, metadata, header, again) as file
        ):
            yield file
    except OSError as error:
        raise unwritable(error, path) from error


@contextmanager
def _safetensors(
    path: Path, tensors: Sequence[TensorInfo], metadata: Mapping[str, str] | None, header: bytes, again: bool
) -> Generator[_Safetensors]:
    if header:
        places = {info.name: (info.offset - len(header), info.dtype) for info in tensors}
    else:
        header, places = _header(tensors, metadata)
    size = len(header) + sum(DTYPES[info.dtype].nbytes(info.shape) for info in tensors)
    lengths = {info.name: DTYPES[info.dtype].nbytes(info.shape) for info in tensors}
    again = again and _begins(path, header, size)
    with path.open("r+b" if again else "wb") as file:
        if not again:
            file.write(header)
            file.flush()
            os.truncate(file.fileno(), size)
        written = _Safetensors(file.fileno(), len(header), places, lengths)
        yield written
        os.fsync(file.fileno())
    assert not written.places, f"never written: {sorted(written.places)[:3]}"


def _begins(path: Path, header: bytes, size: int) -> bool:
    """Whether a file has this header and size."""
    try:
        with path.open("rb") as file:
            return path.stat().st_size == size and file.read(len(header)) == header
    except FileNotFoundError:
        return False


class _Safetensors(PlacedBytes):
    def __init__(
        self, descriptor: int, base: int, places: dict[str, tuple[int, str]], lengths: Mapping[str, int]
    ) -> None:
        super().__init__(descriptor)
        self.base, self.places, self.lengths = base, places, lengths

    def put(self, name: str, array: np.ndarray) -> memoryview:
        offset, dtype = self.places.pop(name)
        flat = bytes_of(array)
        if DTYPES[dtype].bits < 8:  # numpy stores a 4-bit element in a byte
            flat = flat[0::2] & 15 | flat[1::2] << 4
        assert flat.nbytes == self.lengths[name], f"{name}: {flat.nbytes} bytes, {self.lengths[name]} are reserved"
        self.write_at(flat.data, self.base + offset)
        return flat.data

    def stored(self, name: str) -> Iterator[bytes]:
        start = self.base + self.places[name][0]
        return self.read_at(start, start + self.lengths[name])

    def skip(self, name: str) -> None:
        del self.places[name]


def _header(
    tensors: Sequence[TensorInfo], metadata: Mapping[str, str] | None
) -> tuple[bytes, dict[str, tuple[int, str]]]:
    """The file up to its first tensor, padded to 64 bytes; and by name the offset of each after it, and its dtype."""
    entries: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    places: dict[str, tuple[int, str]] = {}
    end = 0
    for info in tensors:
        start, end = end, end + DTYPES[info.dtype].nbytes(info.shape)
        entries[info.name] = {"dtype": PUBLISHED[info.dtype], "shape": list(info.shape), "data_offsets": [start, end]}
        places[info.name] = start, info.dtype
    header = json.dumps(entries, separators=(",", ":")).encode()
    header += b" " * (-(len(header) + 8) % ALIGN)
    return len(header).to_bytes(8, "little") + header, places


@contextmanager
def _npz(path: Path, tensors: Sequence[TensorInfo], again: bool) -> Generator[NpzFile]:
    written = NpzFile(tensors)
    again = again and path.is_file() and path.stat().st_size >= written.nbytes
    with path.open("r+b" if again else "wb") as file:
        os.truncate(file.fileno(), written.nbytes)
        written.descriptor = file.fileno()
        yield written
        written.finish()
        os.fsync(file.fileno())
