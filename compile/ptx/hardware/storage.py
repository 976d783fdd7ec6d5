"""The state of blocks that run in lockstep: shared and local memory, pending copies, barrier objects."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bringup.compile.ptx.assembly.kernel import Instruction
from bringup.compile.ptx.hardware.device import POISON, UNSIGNED

Array = NDArray[Any]
Mask = NDArray[np.bool_] | None
Number = int | Array  # a number of groups: the same for all lanes, or (B, T)
ROW = 128  # bytes that one wavefront reads: 32 banks of 4 bytes


class SharedMemory:
    """`nbytes` of shared memory for each of `blocks` blocks; `bytes` has one row per block. Initialised to `POISON`.

    Rows are padded, so that an aligned access of up to 16 bytes that starts in the padding stays in its row.
    """

    def __init__(self, blocks: int, nbytes: int) -> None:
        self.nbytes = nbytes
        self._adopt(np.full((blocks, -(-nbytes // ROW) * ROW + ROW), POISON, np.uint8))

    def _adopt(self, content: NDArray[np.uint8]) -> None:
        self.bytes = content
        self.pitch = content.shape[1]
        self.origins: NDArray[np.int64] = (np.arange(content.shape[0], dtype=np.int64) * self.pitch)[:, None]
        self._views: dict[tuple[int, int], NDArray[Any]] = {}

    def rows(self, rows: NDArray[np.int64]) -> SharedMemory:
        """A copy for some of the blocks."""
        part = SharedMemory.__new__(SharedMemory)
        part.nbytes = self.nbytes
        part._adopt(self.bytes[rows])
        return part

    def vectors(self, size: int, width: int) -> NDArray[Any]:
        """A view of all blocks' memory: rows of `size` bytes in elements of `width` bytes; flat if these are equal."""
        view = self._views.get((size, width))
        if view is None:
            flat = self.bytes.reshape(-1).view(UNSIGNED[width])
            view = flat if size == width else flat.reshape(-1, size // width)
            self._views[size, width] = view
        return view


class LocalMemory:
    """`nbytes` of local memory for each thread, allocated on first use. Initialised to `POISON`."""

    def __init__(self, blocks: int, threads: int, nbytes: int) -> None:
        self.nbytes = nbytes
        self._shape = (blocks, threads)
        self._pitch = -(-nbytes // 16) * 16 + 16
        self._bytes: NDArray[np.uint8] | None = None

    def rows(self, rows: NDArray[np.int64]) -> LocalMemory:
        """A copy for some of the blocks."""
        part = LocalMemory(len(rows), self._shape[1], self.nbytes)
        if self._bytes is not None:
            part._bytes = self._bytes.reshape(*self._shape, -1)[rows].reshape(-1, self._pitch)
        return part

    def origins(self) -> NDArray[np.int64]:
        """The offset of every thread's first byte, (B, T)."""
        return (np.arange(self._shape[0] * self._shape[1], dtype=np.int64) * self._pitch).reshape(self._shape)

    def flat(self, width: int) -> NDArray[Any]:
        """All threads' memory, in elements of `width` bytes."""
        if self._bytes is None:
            self._bytes = np.full((self._shape[0] * self._shape[1], self._pitch), POISON, np.uint8)
        return self._bytes.reshape(-1).view(UNSIGNED[width])


@dataclass(frozen=True, slots=True)
class Copy:
    """One cp.async: `size` bytes from each source to each destination; only `source_size` are read (None: all)."""

    destination: Array
    source: Array
    size: int
    source_size: Array | None
    mask: Mask
    instruction: Instruction


@dataclass(frozen=True, slots=True)
class Group:
    """Committed copies. `number` is the group's number, counted per thread from 1; `lanes` committed it."""

    copies: tuple[Copy, ...]
    number: Number
    lanes: Mask


class Pending:
    """The pending copies of blocks in lockstep: those that are not committed, and committed groups in order."""

    def __init__(self) -> None:
        self.open: list[Copy] = []
        self.groups: list[Group] = []
        self.committed: Number = 0

    def rows(self, rows: NDArray[np.int64]) -> Pending:
        """A copy for some of the blocks."""
        part = Pending()
        part.open = [_cut_copy(copy, rows) for copy in self.open]
        part.groups = [
            Group(
                tuple(_cut_copy(copy, rows) for copy in group.copies), _cut(group.number, rows), _cut(group.lanes, rows)
            )
            for group in self.groups
        ]
        part.committed = _cut(self.committed, rows)
        return part


def _cut(value: Any, rows: NDArray[np.int64]) -> Any:
    array = np.asarray(value)
    return array[rows] if array.ndim == 2 and len(array) > 1 else value


def _cut_copy(copy: Copy, rows: NDArray[np.int64]) -> Copy:
    names = ("destination", "source", "source_size", "mask")
    return replace(copy, **{name: _cut(getattr(copy, name), rows) for name in names})


@dataclass(frozen=True, slots=True)
class Arriving:
    """A pending tensor copy: the offsets of its elements in device memory and in shared memory.

    `inside`: elements within the tensor; the others are set to `fill`. `width` is in bytes.
    """

    row: int
    source: NDArray[np.int64]
    destination: NDArray[np.int64]
    inside: NDArray[np.bool_]
    width: int
    fill: int

    @property
    def nbytes(self) -> int:
        """The bytes that the barrier object counts, including elements outside the tensor."""
        return self.source.size * self.width


class Barriers:
    """The barrier objects of `blocks` blocks, by shared address. A row has phase, arrivals, count, pending bytes."""

    def __init__(self, blocks: int) -> None:
        self._blocks = blocks
        self.states: dict[int, NDArray[np.int64]] = {}
        self.arriving: dict[int, list[Arriving]] = {}

    def rows(self, rows: NDArray[np.int64]) -> Barriers:
        """A copy for some of the blocks."""
        part = Barriers(len(rows))
        part.states = {address: state[rows] for address, state in self.states.items()}
        position = {int(row): index for index, row in enumerate(rows)}
        part.arriving = {
            address: [replace(copy, row=position[copy.row]) for copy in copies if copy.row in position]
            for address, copies in self.arriving.items()
        }
        return part

    def state(self, address: int) -> NDArray[np.int64]:
        """The state of the barrier object at `address` in every block; zero before its init."""
        found = self.states.get(address)
        if found is None:
            found = self.states[address] = np.zeros((self._blocks, 4), np.int64)
        return found
