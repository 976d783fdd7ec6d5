"""Arrays for weights: dtypes by name, aligned memory, and private views of files.

numpy and ml_dtypes are imported when an array is created: a check reads headers and needs neither.
"""

from __future__ import annotations

import math
import mmap
import os
import sys
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakValueDictionary

from bringup.adapters.checkpoints.files import opened
from bringup.diagnostics import BringupError, fail
from bringup.spec import DTYPES, Shape, TensorInfo

if TYPE_CHECKING:
    import numpy as np

ALIGNMENT = 64  # a cache line, an AVX-512 register, and the alignment that IREE requires of parameters
HUGE = 2 << 20  # bytes of a huge page of x86-64, and of most others
READ = 4 << 20  # bytes that a thread of `resident` reads at a time
# Without it Linux rejects a private mapping larger than memory and swap; Python 3.11 has no name for it.
NO_RESERVE: int = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)

Key = tuple[str, int, int, int]  # path, inode, bytes, time of the last change


class _Map(mmap.mmap):
    """Bytes of a file, mapped copy on write, and the offsets of the tensors that views of it were returned for."""

    given: set[int]


_maps: WeakValueDictionary[Key, _Map] = WeakValueDictionary()
_lock = threading.Lock()


def numpy_dtype(name: str) -> np.dtype[np.generic]:
    """numpy's or ml_dtypes' dtype of that name. 4-bit dtypes use a byte for each element; block types have none."""
    import ml_dtypes
    import numpy as np

    assert not DTYPES[name].block, f"{name} is stored in blocks: no array has it"
    return np.dtype(getattr(ml_dtypes, name, name))


def aligned(shape: Shape, dtype: str, *, whole: bool = True) -> np.ndarray:
    """A writable array on a 64-byte boundary. Its values are undefined.

    From HUGE bytes on it has its own mapping, in huge pages if the system has some: these fill three times as fast.
    numpy requests huge pages too, from 4 MiB on, but its memory does not begin on the boundary of one. An array that is
    filled partly (`whole` is false) has small pages: a huge one takes HUGE bytes of memory for a single byte.
    """
    import numpy as np

    element = numpy_dtype(dtype)
    nbytes = math.prod(shape) * element.itemsize
    if nbytes >= HUGE and (pages := _pages(nbytes, huge=whole)) is not None:
        return pages.view(element).reshape(shape)
    raw = np.empty(nbytes + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + nbytes].view(element).reshape(shape)


def _pages(nbytes: int, *, huge: bool) -> np.ndarray | None:
    """New bytes, in huge pages or in small ones; None if the system does not support them or has no memory, which
    `np.empty` then reports.

    A huge page begins on a multiple of its size, and so do the bytes. New Linux kernels place a mapping of complete
    huge pages there; on others the bytes before the first multiple are not used.
    """
    import numpy as np

    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return None
    for spare in (0, HUGE):
        try:
            pages = mmap.mmap(-1, -(-nbytes // HUGE) * HUGE + spare, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError:
            return None
        found = np.frombuffer(pages, np.uint8)
        start = -found.ctypes.data % HUGE
        if start <= spare:
            break
    with suppress(OSError):  # a kernel without huge pages: https://man7.org/linux/man-pages/man2/madvise.2.html
        pages.madvise(mmap.MADV_HUGEPAGE if huge else mmap.MADV_NOHUGEPAGE)
    return found[start : start + nbytes]


def mapped(path: Path, info: TensorInfo) -> np.ndarray:
    """A tensor of a file as a private view: writable, read only where accessed; the file never changes.

    Each call returns the file's own values, in memory that no earlier call returned. A view of a tensor that begins
    on an odd byte is not aligned (`flags.aligned`). GGUF blocks are uint8 [nbytes]. 4-bit elements, which take a byte
    each in numpy, are unpacked, low half first. Raises BU207.
    """
    import numpy as np

    dtype = DTYPES[info.dtype]
    if info.nbytes == 0:
        return aligned((0,) if dtype.block else info.shape, "uint8" if dtype.block else info.dtype)
    file, offset = _view(path, info)
    if dtype.block:
        return np.ndarray(info.nbytes, np.uint8, buffer=file, offset=offset)
    if dtype.bits < 8:
        return _unpacked(np.ndarray(info.nbytes, np.uint8, buffer=file, offset=offset), info)
    return np.ndarray(info.shape, numpy_dtype(info.dtype), buffer=file, offset=offset)


def loaded(path: Path, info: TensorInfo) -> np.ndarray:
    """As `mapped`, but read into memory of its own. Raises BU207 if the file shrinks meanwhile.

    Access to a mapping of bytes that no longer exist ends the process (SIGBUS).
    """
    raw = aligned((info.nbytes,), "uint8")
    with opened(path) as file:
        file.seek(info.offset)
        if file.readinto(raw.data) < info.nbytes:  # type: ignore[attr-defined]  a buffered file has it
            raise _shrunk(path, info)
    return _shaped(raw, info)


def resident(path: Path, tensors: Mapping[str, TensorInfo]) -> dict[str, np.ndarray]:
    """Every tensor of a file, by name, read by several threads into one block of memory in huge pages.

    Matrices that are read from the first row to the last for every token are read up to 1.7 times as fast as from a
    mapped file, whose pages have 4 KiB on most file systems (benchmarks/results/2026-11-25-huge-pages.md). Processes
    share none of it. Raises BU207 if the file shrinks meanwhile, MemoryError.
    """
    end = max((info.offset + info.nbytes for info in tensors.values()), default=0)
    first = min((info.offset for info in tensors.values()), default=0)
    block = aligned((end - first,), "uint8")

    def read(start: int) -> None:
        with opened(path) as file:
            file.seek(first + start)
            if file.readinto(block[start : start + READ].data) < len(block[start : start + READ]):  # type: ignore[attr-defined]
                last = max(tensors.values(), key=lambda info: info.offset)
                raise _shrunk(path, last)

    with ThreadPoolExecutor(os.cpu_count() or 1) as threads:
        list(threads.map(read, range(0, len(block), READ)))
    return {name: _shaped(block[info.offset - first :][: info.nbytes], info) for name, info in tensors.items()}


def bytes_of(array: np.ndarray) -> np.ndarray:
    """The values of an array in C order as uint8 [bytes]: a view if they are contiguous, otherwise a copy.

    Arrays of bfloat16 and float8 do not support the buffer protocol themselves.
    """
    import numpy as np

    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def from_bytes(info: TensorInfo, data: bytes) -> np.ndarray:
    """A tensor from its stored bytes, in the form that `mapped` returns, in memory of its own."""
    raw = aligned((info.nbytes,), "uint8")
    raw.data[:] = data
    return _shaped(raw, info)


def _shaped(raw: np.ndarray, info: TensorInfo) -> np.ndarray:
    dtype = DTYPES[info.dtype]
    if dtype.block:
        return raw
    if dtype.bits < 8:
        return _unpacked(raw, info)
    return raw.view(numpy_dtype(info.dtype)).reshape(info.shape)


def release_pages(array: np.ndarray) -> None:
    """Frees the memory of an array from `mapped` that is no longer used: what was written to it is lost.

    Otherwise the pages of a file that were read remain in memory as long as any tensor of it is in use.
    """
    import numpy as np

    owner: Any = array
    while isinstance(owner, np.ndarray):
        owner = cast(Any, owner.base)
    if not isinstance(owner, _Map) or not hasattr(owner, "madvise"):
        return
    start = array.ctypes.data - np.frombuffer(owner, np.uint8).ctypes.data
    first = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE  # complete pages only: other views may have written to the rest
    size = (start + array.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE - first
    if size > 0:
        owner.madvise(mmap.MADV_DONTNEED, first, size)


def _unpacked(packed: np.ndarray, info: TensorInfo) -> np.ndarray:
    import numpy as np

    halves = np.stack((packed & 15, packed >> 4), axis=1).reshape(-1)[: math.prod(info.shape)]
    if info.dtype == "int4":
        halves = (halves.astype(np.int8) ^ 8) - 8
        return halves.astype(numpy_dtype("int4")).reshape(info.shape)
    return halves.view(numpy_dtype(info.dtype)).reshape(info.shape)


def _view(path: Path, info: TensorInfo) -> tuple[_Map, int]:
    """A mapping that contains the tensor, and its offset there.

    There is one mapping for each file; a tensor that is requested again gets its own, so that it does not show what was
    written to the first.
    """
    with _lock:
        stat = path.stat()
        if info.offset + info.nbytes > stat.st_size:
            raise _shrunk(path, info)
        key = (str(path), stat.st_ino, stat.st_size, stat.st_mtime_ns)
        file = _maps.get(key)
        if file is None:
            file = _maps[key] = _map(path, 0, stat.st_size)
        if info.offset not in file.given:
            file.given.add(info.offset)
            return file, info.offset
        start = info.offset - info.offset % mmap.ALLOCATIONGRANULARITY
        return _map(path, start, info.offset + info.nbytes - start), info.offset - start


def _shrunk(path: Path, info: TensorInfo) -> BringupError:
    end, size = info.offset + info.nbytes, path.stat().st_size
    return fail(
        "BU207",
        f"`{path}` has {size} bytes now, and when its header was read `{info.name}` ended at byte {end}",
        help="let whatever writes the file finish, then run again",
        file=str(path),
    )


def _map(path: Path, start: int, size: int) -> _Map:
    with path.open("rb") as file:
        if hasattr(mmap, "MAP_PRIVATE"):
            flags, prot = mmap.MAP_PRIVATE | NO_RESERVE, mmap.PROT_READ | mmap.PROT_WRITE
            mapping = _Map(file.fileno(), size, flags=flags, prot=prot, offset=start)
        else:
            mapping = _Map(file.fileno(), size, access=mmap.ACCESS_COPY, offset=start)
    mapping.given = set()
    return mapping
