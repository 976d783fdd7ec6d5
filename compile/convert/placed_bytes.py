"""A file whose arrays have their offsets before the first is written."""

from __future__ import annotations

import os
from collections.abc import Iterator

PIECE = 4 << 20  # bytes that are read back at once


class PlacedBytes:
    """Reads and writes bytes at offsets of an open file, and flushes them."""

    def __init__(self, descriptor: int = -1) -> None:
        self.descriptor = descriptor

    def flush(self) -> None:
        """Returns when all bytes written so far are on disk. Raises OSError."""
        getattr(os, "fdatasync", os.fsync)(self.descriptor)  # macOS has no fdatasync

    def read_at(self, start: int, end: int) -> Iterator[bytes]:
        """The bytes from `start` to `end` in pieces, fewer if the file ends before. Raises OSError."""
        while start < end and (piece := os.pread(self.descriptor, min(PIECE, end - start), start)):
            yield piece
            start += len(piece)

    def write_at(self, data: bytes | memoryview, start: int) -> None:
        """Writes all of `data`. Raises OSError."""
        rest = memoryview(data)
        while rest:
            count = os.pwrite(self.descriptor, rest, start)
            rest, start = rest[count:], start + count
