"""A file, and a folder, behind HTTP, with the methods of `Path` that readers of headers use."""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Iterable
from functools import total_ordering
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlsplit

from bringup.adapters.sources.remote.client import Client, Facts
from bringup.spec import DTYPES, TensorInfo

if TYPE_CHECKING:
    import numpy as np

WINDOW = 8 << 10  # bytes of the first read; it contains the headers of small files
BLOCK = 4 << 10  # bytes of a later small read, which are cached: headers of an archive's members
MOST_BLOCKS = 16384
NEAR = 64 << 10  # bytes transferred in about the time of a request: closer blocks are requested together
RUN = 4 << 20  # most bytes of one request for several blocks
SMALL = 16 << 20  # bytes of a file that is always read by ranges


class Dense(Exception):
    """The announced reads of a file would take as long as the complete file."""


class RemoteFolder:
    """Files of one repository or URL. `names` are the known ones; `complete`: there are no others."""

    def __init__(self, client: Client, url: str, names: Iterable[str], *, complete: bool = True) -> None:
        self.client, self.url = client, url.rstrip("/")
        self.names, self.complete = sorted(set(names)), complete

    def __truediv__(self, name: str) -> RemoteFile:
        return RemoteFile(self, name)

    def __str__(self) -> str:
        return self.url

    def resolve(self) -> RemoteFolder:
        return self

    def is_dir(self) -> bool:
        return True


@total_ordering
class RemoteFile:
    """A file of a folder; it is requested when it is read."""

    def __init__(self, parent: RemoteFolder, name: str) -> None:
        self.parent, self.path = parent, name
        self.facts: Facts | None = None
        self.head = b""
        self.blocks: dict[int, bytes] = {}
        self.runs: dict[int, list[int]] = {}  # block → those that are requested together with it

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    @property
    def stem(self) -> str:
        return self.name.rpartition(".")[0] or self.name

    @property
    def suffix(self) -> str:
        return os.path.splitext(self.name)[1]  # noqa: PTH122  not a path of this machine

    @property
    def url(self) -> str:
        return f"{self.parent.url}/{quote(self.path)}"

    def __str__(self) -> str:
        return self.url

    def __hash__(self) -> int:
        return hash(self.url)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RemoteFile) and self.url == other.url

    def __lt__(self, other: RemoteFile) -> bool:
        return self.url < other.url

    def is_dir(self) -> bool:
        return False

    def exists(self) -> bool:
        """Whether it is listed; without a list of the files, a read shows it."""
        return self.path in self.parent.names or not self.parent.complete

    def is_file(self) -> bool:
        return self.path in self.parent.names

    def resolve(self) -> RemoteFile:
        return self

    def stat(self) -> Any:
        """Its size; it is a regular file."""
        if self.facts is None:
            self.read_range(0, WINDOW)
        assert self.facts is not None, "read_range sets them"
        return SimpleNamespace(st_mode=stat.S_IFREG, st_size=self.facts.size)

    def open(self, mode: str = "rb") -> io.RawIOBase:
        return _Ranges(self)

    def read_range(self, start: int, count: int) -> bytes:
        """Bytes of the file, fewer at its end. Raises BU913 to BU916."""
        if start + count <= len(self.head):
            return self.head[start : start + count]
        if start and count < BLOCK:
            return self._from_blocks(start, count)
        wanted = max(count, WINDOW) if start == 0 else count
        data, self.facts = self.parent.client.range(self.url, start, wanted, self.facts)
        if start == 0:
            self.head = data[:WINDOW]
        return data[:count]

    def expect(self, spans: Iterable[tuple[int, int]]) -> None:
        """Announces small reads, each as first byte and number of bytes: blocks within NEAR of one another are
        requested together.

        Raises Dense if the requests, each of which takes as long as NEAR bytes, would take longer than half of a file
        that is not small.
        """
        size = self.stat().st_size
        last = max(0, size - 1) // BLOCK
        places = {at for start, count in spans for at in range(start // BLOCK, (start + count - 1) // BLOCK + 1)}
        groups: list[list[int]] = []
        for place in sorted(place for place in places if place <= last):
            near = groups and (place - groups[-1][-1]) * BLOCK <= NEAR
            if near and (place + 1 - groups[-1][0]) * BLOCK <= RUN:
                groups[-1].append(place)
            else:
                groups.append([place])
        cost = sum((group[-1] + 1 - group[0]) * BLOCK + NEAR for group in groups)
        if size > SMALL and 2 * cost > size:
            raise Dense
        self.runs = {place: group for group in groups for place in group}

    def forget(self) -> None:
        """Drops the bytes that were fetched for headers."""
        self.blocks, self.runs = {}, {}

    def _from_blocks(self, start: int, count: int) -> bytes:
        """Bytes of one or two blocks of the file; missing blocks are requested together."""
        first, last = start // BLOCK, (start + count - 1) // BLOCK
        if count and not {first, last} <= self.blocks.keys():
            if len(self.blocks) >= MOST_BLOCKS:
                self.blocks.clear()
            wanted = sorted({first, last, *self.runs.get(first, []), *self.runs.get(last, [])})
            nbytes = (wanted[-1] + 1 - wanted[0]) * BLOCK
            data, self.facts = self.parent.client.range(self.url, wanted[0] * BLOCK, nbytes, self.facts)
            for number in wanted:
                self.blocks[number] = data[(number - wanted[0]) * BLOCK :][:BLOCK]
        found = b"".join(self.blocks[number] for number in range(first, last + 1)) if count else b""
        return found[start - first * BLOCK :][:count]


class _Ranges(io.RawIOBase):
    """A stream of a file, each read of which is a request."""

    def __init__(self, file: RemoteFile) -> None:
        self.file, self.at = file, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self.at = offset + (0, self.at, self.file.stat().st_size if whence == os.SEEK_END else 0)[whence]
        return self.at

    def read(self, size: int = -1) -> bytes:
        left = self.file.stat().st_size - self.at
        count = left if size < 0 else min(size, left)
        data = self._from_head(count) if count > 0 else b""
        self.at += len(data)
        return data

    def readinto(self, buffer: Any) -> int:
        """Fills the buffer, up to the end of the file."""
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def _from_head(self, count: int) -> bytes:
        """Bytes of the first request, and of another for the rest."""
        first = self.file.head[self.at : self.at + count]
        return first + (self.file.read_range(self.at + len(first), count - len(first)) if len(first) < count else b"")


def read_remote(info: TensorInfo) -> np.ndarray:
    """A tensor, fetched by its range, in memory of its own. Raises BU913 to BU916."""
    from bringup.adapters.checkpoints.arrays import from_bytes

    file: Any = info.file
    return from_bytes(info, file.read_range(info.offset, DTYPES[info.dtype].nbytes(info.shape)))


def folder_of(client: Client, url: str) -> tuple[RemoteFolder, str]:
    """The folder that a file's URL is in, and the file's name; a query belongs to neither."""
    parts = urlsplit(url)
    place, _, quoted = parts.path.rpartition("/")
    name = unquote(quoted)
    return RemoteFolder(client, f"{parts.scheme}://{parts.netloc}{place}", [name], complete=False), name
