"""Reads the byte ranges that parameters need, of all their tensors in one pass over each file.

Adjacent ranges of a file are one request, also of several tensors: preadv(2) scatters it to their arrays.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from bringup.adapters.apply.byte_runs import Span
from bringup.adapters.checkpoints.checkpoint import Checkpoint
from bringup.spec import DTYPES, TensorInfo

if TYPE_CHECKING:
    import numpy as np

MOST_BUFFERS = 1024  # IOV_MAX of Linux and macOS


@dataclass(frozen=True, slots=True)
class _Part:
    """A range of a file, and the memory of a tensor that it is read into."""

    offset: int
    into: memoryview
    info: TensorInfo

    @property
    def end(self) -> int:
        return self.offset + len(self.into)


@dataclass(slots=True)
class RangeReader:
    """Reads only the ranges of each tensor that `want` lists, and counts the bytes.

    Returns arrays of the tensor's complete shape, whose other bytes are undefined; their pages use no memory. `nbytes`
    is the number of bytes read so far. Arrays are cached until `want` is called with the next parameters' ranges.
    """

    checkpoint: Checkpoint
    nbytes: int = 0
    wanted: dict[str, list[Span]] = field(default_factory=dict[str, list[Span]])
    _held: dict[str, np.ndarray] = field(default_factory=dict[str, "np.ndarray"])

    def want(self, ranges: dict[str, list[Span]]) -> None:
        """Drops the cached arrays; `ranges` by tensor are read together on the next call."""
        self.wanted, self._held = ranges, {}

    def __call__(self, info: TensorInfo) -> np.ndarray:
        if not self._held:
            self._read_together()
        if info.name not in self._held:
            self.nbytes += _size(self.wanted[info.name])
            self._held[info.name] = self.checkpoint.loaded(info)
        return self._held[info.name]

    def _read_together(self) -> None:
        """Reads all requested tensors whose bytes in the file are those of their arrays."""
        from bringup.adapters.checkpoints.arrays import aligned, numpy_dtype
        from bringup.adapters.checkpoints.files import opened

        parts: dict[Path, list[_Part]] = {}
        for name, spans in self.wanted.items():
            info = self.checkpoint.headers[name]
            if not is_plain(self.checkpoint, info):
                continue
            assert info.file is not None, "a tensor in a file"
            self.nbytes += _size(spans)
            raw = aligned((info.nbytes,), "uint8", whole=_size(spans) == info.nbytes)
            found = (_Part(info.offset + start, raw.data[start:stop], info) for start, stop in spans)
            parts.setdefault(info.file, []).extend(found)
            block = DTYPES[info.dtype].block
            self._held[name] = raw if block else raw.view(numpy_dtype(info.dtype)).reshape(info.shape)
        for path, some in parts.items():
            with opened(path) as file:
                for run in _touching(some):
                    for info in _short(file, run):  # a truncated file: `load` reports it
                        self._held[info.name] = self.checkpoint.loaded(info)


def is_plain(checkpoint: Checkpoint, info: TensorInfo) -> bool:
    """Whether a tensor's bytes in the file are those of its array: then a part of them can be read."""
    in_place = info.file is not None and info.nbytes > 0 and checkpoint.in_place(info)
    return in_place and (DTYPES[info.dtype].block is not None or DTYPES[info.dtype].bits >= 8)


def _size(spans: list[Span]) -> int:
    return sum(stop - start for start, stop in spans)


def _touching(parts: list[_Part]) -> Iterator[list[_Part]]:
    """The parts of a file in order, grouped if they follow one another without a gap."""
    run: list[_Part] = []
    for part in sorted(parts, key=lambda part: part.offset):
        if run and (part.offset != run[-1].end or len(run) == MOST_BUFFERS):
            yield run
            run = []
        run.append(part)
    if run:
        yield run


def _short(file: BinaryIO, run: list[_Part]) -> list[TensorInfo]:
    """Reads a run; returns the tensors that extend past the end of the file."""
    rest, at = [part.into for part in run], run[0].offset
    while rest:
        count = os.preadv(file.fileno(), rest, at)
        if not count:
            return [part.info for part in run[-len(rest) :]]
        at += count
        while rest and count >= len(rest[0]):
            count -= len(rest.pop(0))
        if rest:
            rest[0] = rest[0][count:]
    return []
