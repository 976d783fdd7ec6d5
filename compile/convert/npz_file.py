"""Archives of numpy's arrays (.npz) whose members can be written in any order, and by a later run.

All sizes are known before the first array, so each member has its offset; its checksum is written with its array. The
directory at the end follows when all members are written. Format: APPNOTE.TXT of PKWARE, sections 4.3.7 (local header),
4.3.12 to 4.3.16 (directory and its end) and 4.5.3 (64-bit sizes); members are .npy files, numpy.lib.format.
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from struct import pack
from typing import TYPE_CHECKING

from bringup.adapters.checkpoints.arrays import bytes_of
from bringup.compile.convert.placed_bytes import PlacedBytes
from bringup.spec import DTYPES, TensorInfo

if TYPE_CHECKING:
    import numpy as np

VERSION, UTF8, DATE = 45, 0x800, 0x21  # 4.5: 64-bit sizes; names are UTF-8; 1 January 1980, as zipfile writes it
NONE, LARGE = 0xFFFF, 0xFFFFFFFF  # markers: the number is in a 64-bit field


@dataclass(slots=True)
class _Member:
    """`start` is the offset of its local header; the .npy header precedes the array's `nbytes`."""

    name: bytes
    start: int
    header: bytes
    nbytes: int
    checksum: int | None = None

    @property
    def size(self) -> int:
        return len(self.header) + self.nbytes

    @property
    def array_start(self) -> int:
        return self.start + len(self.local()) + len(self.header)

    @property
    def end(self) -> int:
        return self.array_start + self.nbytes

    def local(self) -> bytes:
        """The local header. Its length does not depend on the checksum."""
        words = (VERSION, UTF8, 0, 0, DATE, self.checksum or 0, LARGE, LARGE, len(self.name), 20)
        return pack("<4s5H3I2H", b"PK\3\4", *words) + self.name + pack("<2H2Q", 1, 16, self.size, self.size)

    def entry(self) -> bytes:
        """Its entry in the directory."""
        words = (VERSION, VERSION, UTF8, 0, 0, DATE, self.checksum, LARGE, LARGE, len(self.name), 28, 0, 0, 0, 0, LARGE)
        fixed = pack("<4s6H3I5H2I", b"PK\1\2", *words)
        return fixed + self.name + pack("<2H3Q", 1, 24, self.size, self.size, self.start)


class NpzFile(PlacedBytes):
    """A file that is being written, see `compile/convert/array_files.py`. `nbytes` is its size without a directory."""

    def __init__(self, tensors: Sequence[TensorInfo]) -> None:
        super().__init__()
        self.members: dict[str, _Member] = {}
        self.left = {info.name for info in tensors}
        self.nbytes = 0
        for info in tensors:
            nbytes = DTYPES[info.dtype].nbytes(info.shape)
            member = _Member(f"{info.name}.npy".encode(), self.nbytes, _npy_header(info), nbytes)
            self.members[info.name], self.nbytes = member, member.end

    def put(self, name: str, array: np.ndarray) -> memoryview:
        member = self.members[name]
        data = bytes_of(array).data
        assert data.nbytes == member.nbytes, f"{name}: {data.nbytes} bytes, {member.nbytes} are reserved"
        member.checksum = zlib.crc32(data, zlib.crc32(member.header))
        self.write_at(member.local() + member.header, member.start)
        self.write_at(data, member.array_start)
        self.left.remove(name)
        return data

    def stored(self, name: str) -> Iterator[bytes]:
        member = self.members[name]
        checksum = zlib.crc32(member.header)
        for piece in self.read_at(member.array_start, member.end):
            yield piece
            checksum = zlib.crc32(piece, checksum)
        member.checksum = checksum  # of all pieces, when the loop has ended

    def skip(self, name: str) -> None:
        member = self.members[name]
        assert member.checksum is not None, "all pieces of `stored` were read"
        self.write_at(member.local() + member.header, member.start)
        self.left.remove(name)

    def finish(self) -> None:
        """Writes the directory, after every array."""
        assert not self.left, f"never written: {sorted(self.left)[:3]}"
        entries = b"".join(member.entry() for member in self.members.values())
        count, end = len(self.members), self.nbytes + len(entries)
        large = pack("<4sQ2H2I4Q", b"PK\6\6", 44, VERSION, VERSION, 0, 0, count, count, len(entries), self.nbytes)
        locator = pack("<4sIQI", b"PK\6\7", 0, end, 1)
        last = pack("<4s4H2IH", b"PK\5\6", 0, 0, NONE, NONE, LARGE, LARGE, 0)
        self.write_at(entries + large + locator + last, self.nbytes)


def _npy_header(info: TensorInfo) -> bytes:
    import numpy as np

    words = {"descr": np.lib.format.dtype_to_descr(np.dtype(info.dtype)), "fortran_order": False, "shape": info.shape}
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, words)
    return file.getvalue()
