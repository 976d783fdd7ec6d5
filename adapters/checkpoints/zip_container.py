"""The directory of a zip archive: its members, and the offsets of their bytes.

Format: PKWARE's APPNOTE.TXT 6.3.10, sections 4.3 (records) and 4.5.3 (zip64). Only features that torch and numpy use
are supported: one disk, no encryption, methods 0 (stored) and 8 (deflated). Members that share bytes are rejected:
archives with such members may inflate to more than any disk holds.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO, NamedTuple

from bringup.adapters.checkpoints.files import expect, opened, too_short
from bringup.diagnostics import BringupError, fail
from bringup.shown import short

MAGIC = b"PK\x03\x04"
MAX_DIRECTORY = 64 << 20  # bytes; 92,000 tensors take 9 MB
MAX_MEMBERS = 400_000
STORED, DEFLATED = 0, 8
_LOCAL, _CENTRAL, _END, _END64, _LOCATOR = (b"PK\x03\x04", b"PK\x01\x02", b"PK\x05\x06", b"PK\x06\x06", b"PK\x06\x07")
_END_BYTES, _CENTRAL_BYTES, _LOCAL_BYTES, _LOCATOR_BYTES, _END64_BYTES = 22, 46, 30, 20, 56
_COMMENT = (1 << 16) - 1  # bytes of the longest comment after the directory
_WIDE, _WIDE_COUNT = (1 << 32) - 1, (1 << 16) - 1  # the number is in a zip64 field
_DEFLATE_TABLES = 1 << 10  # bytes; the code lengths of a block take less (RFC 1951, section 3.2.7)
_HEAD = 1 << 10  # bytes that are announced for each member: its extra field and numpy's header
_PIECE = 1 << 20  # most bytes of a compressed member that are inflated at once
_ENCRYPTED, _PATCHED = 1, 32  # bits of a member's flags


class Member(NamedTuple):
    """One member of an archive: its bytes in the file, and their number after inflation."""

    name: str
    method: int
    offset: int
    packed: int
    nbytes: int


def read_zip(path: Path) -> Mapping[str, Member]:
    """The members of an archive by name. Raises BU209, BU233."""
    with opened(path) as file:
        size = file.seek(0, os.SEEK_END)
        start, length, count = _directory(path, file, size)
        if length > MAX_DIRECTORY or count > MAX_MEMBERS:
            raise damaged(path, f"its directory lists {count:,} members in {length:,} bytes: more than any model has")
        if start + length > size or count * _CENTRAL_BYTES > length:
            raise damaged(path, "its directory does not fit into the file")
        file.seek(start)
        listed = _listed(path, file.read(length), count)
        return _placed(path, file, listed, start)


def _directory(path: Path, file: BinaryIO, size: int) -> tuple[int, int, int]:
    """The offset of the central directory, its bytes, and its members."""
    tail = min(size, _END_BYTES + _COMMENT)
    file.seek(size - tail)
    data = file.read(tail)
    at = data.rfind(_END)
    if at < 0 or len(data) - at < _END_BYTES:
        stopped = "it has no directory at its end; a download or copy that stopped early has none"
        raise damaged(path, too_short(path) or stopped)
    disk, first, here, count, length, start, _ = struct.unpack_from("<4H2IH", data, at + 4)
    if (disk, first) not in ((0, 0), (_WIDE_COUNT, 0)) or (here != count):
        raise damaged(path, "it is one of several parts")
    if _WIDE_COUNT not in (count, disk) and _WIDE not in (length, start):
        return start, length, count
    place = size - tail + at - _LOCATOR_BYTES
    if place < 0:
        return start, length, count
    file.seek(place)
    locator = file.read(_LOCATOR_BYTES)
    if locator[:4] != _LOCATOR:
        return start, length, count
    (where,) = struct.unpack_from("<Q", locator, 8)
    if where + _END64_BYTES > size:
        raise damaged(path, "its zip64 directory does not fit into the file")
    file.seek(where)
    end = file.read(_END64_BYTES)
    if end[:4] != _END64:
        raise damaged(path, "its zip64 directory is not at the stated offset")
    count, length, start = struct.unpack_from("<3Q", end, 32)
    return start, length, count


def _listed(path: Path, data: bytes, count: int) -> list[Member]:
    """Every entry of the directory; offsets are those of the local headers."""
    listed: list[Member] = []
    at = 0
    for _ in range(count):
        if data[at : at + 4] != _CENTRAL or len(data) - at < _CENTRAL_BYTES:
            raise damaged(path, f"entry {len(listed)} of its directory is damaged")
        flags, method = struct.unpack_from("<2H", data, at + 8)
        packed, nbytes, name_bytes, extra_bytes, comment_bytes = struct.unpack_from("<2I3H", data, at + 20)
        (offset,) = struct.unpack_from("<I", data, at + 42)
        at += _CENTRAL_BYTES
        raw, extra = data[at : at + name_bytes], data[at + name_bytes : at + name_bytes + extra_bytes]
        at += name_bytes + extra_bytes + comment_bytes
        try:
            name = raw.decode("utf-8")
        except UnicodeDecodeError:
            raise damaged(path, f"entry {len(listed)} of its directory has a name that is not UTF-8") from None
        if flags & (_ENCRYPTED | _PATCHED):
            raise damaged(path, f"`{short(name)}` is encrypted")
        nbytes, packed, offset = _wide(path, name, extra, (nbytes, packed, offset))
        listed.append(Member(name, method, offset, packed, nbytes))
    return listed


def _wide(path: Path, name: str, extra: bytes, numbers: tuple[int, int, int]) -> tuple[int, int, int]:
    """Size, packed size and offset, from the zip64 field (header ID 1) if they exceed 32 bits (APPNOTE 4.5.3)."""
    if _WIDE not in numbers:
        return numbers
    while len(extra) >= 4:
        kind, length = struct.unpack_from("<2H", extra)
        field, extra = extra[4 : 4 + length], extra[4 + length :]
        if kind == 1:
            found = iter(struct.unpack(f"<{len(field) // 8}Q", field[: len(field) // 8 * 8]))
            try:
                size, packed, offset = (next(found) if number == _WIDE else number for number in numbers)
            except (StopIteration, RuntimeError):
                break
            return size, packed, offset
    raise damaged(path, f"`{short(name)}` has no zip64 field for its size")


def _placed(path: Path, file: BinaryIO, listed: list[Member], limit: int) -> dict[str, Member]:
    """Each member with the offset of its bytes, from its local header; members do not overlap."""
    members: dict[str, Member] = {}
    end = 0
    expect(path, [(entry.offset, _LOCAL_BYTES + len(entry.name) + _HEAD) for entry in listed])
    for entry in sorted(listed, key=lambda entry: entry.offset):
        name = short(entry.name)
        if entry.name in members:
            raise damaged(path, f"`{name}` is in it twice")
        if entry.offset < end:
            raise damaged(path, f"`{name}` shares bytes with another member")
        if entry.offset + _LOCAL_BYTES > limit:
            raise damaged(path, f"`{name}` begins after its directory")
        file.seek(entry.offset)
        head = file.read(_LOCAL_BYTES)
        if head[:4] != _LOCAL or len(head) < _LOCAL_BYTES:
            raise damaged(path, f"`{name}` is not at the offset that the directory states")
        (method,) = struct.unpack_from("<H", head, 8)
        name_bytes, extra_bytes = struct.unpack_from("<2H", head, 26)
        start = entry.offset + _LOCAL_BYTES + name_bytes + extra_bytes
        end = start + entry.packed
        if method != entry.method or method not in (STORED, DEFLATED):
            raise damaged(path, f"`{name}` is compressed by method {entry.method}; 0 and 8 are read")
        if method == STORED and entry.packed != entry.nbytes:
            raise damaged(path, f"`{name}` is not compressed, but its two sizes differ")
        if end > limit:
            raise damaged(path, f"`{name}` ends after the start of its directory")
        members[entry.name] = entry._replace(offset=start)
    return members


def read_member(path: Path, member: Member, limit: int) -> bytes:
    """The first `limit` bytes of a member, inflated if it is compressed. Raises BU209.

    A compressed member is read in pieces until that many bytes are inflated: a stream may begin with empty blocks (RFC
    1951, section 3.2.4), one for each flush of its writer.
    """
    with opened(path) as file:
        file.seek(member.offset)
        if member.method == STORED:
            return file.read(min(member.packed, limit))
        inflater, found, left = zlib.decompressobj(-zlib.MAX_WBITS), b"", member.packed
        while len(found) < limit and left > 0 and not inflater.eof:
            piece = file.read(min(left, 2 * limit + _DEFLATE_TABLES, _PIECE))
            if not piece:
                break
            left -= len(piece)
            try:
                found += inflater.decompress(piece, limit - len(found))
            except zlib.error as error:
                raise damaged(path, f"`{short(member.name)}` cannot be inflated: {error}") from None
    return found


def damaged(path: Path, why: str) -> BringupError:
    """BU209 for a file that is not an archive, or not one of torch or numpy."""
    help = "the file is damaged or was not written by torch.save or numpy.savez: copy or download it again"
    return fail("BU209", f"`{path}` is not a readable zip archive: {why}", help=help, file=str(path))
