"""Bytes: the bytes of each buffer that a launch reads and writes, each counted once, and the 32-byte sectors requested.

A sector is the unit in which L2 serves a request of a warp (CUDA C++ Best Practices Guide, "Coalesced Access to Global
Memory"). The counts are those of the kernel's accesses, without the effects of caches and DRAM.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bringup.compile.ptx.assembly.kernel import Instruction
from bringup.compile.ptx.hardware.context import Context, Launch, Mask
from bringup.compile.ptx.hardware.observe import Observer
from bringup.compile.ptx.watch.lanes import by_warp, distinct, place

SECTOR = 32
_ONES: dict[int, Any] = {
    1: np.uint8(1),
    2: np.uint16(0x0101),
    4: np.uint32(0x01010101),
    8: np.uint64(0x0101010101010101),
}


@dataclass(frozen=True, slots=True)
class BufferTraffic:
    """Bytes of one allocation that a launch read and wrote, each counted once."""

    name: str
    nbytes: int
    read: int
    written: int


@dataclass(slots=True)
class AccessTraffic:
    """The accesses of one instruction to one buffer.

    A request is that of one warp. `requested` bytes count each lane; `minimum` is the minimum number of sectors for the
    requests.
    """

    instruction: str
    buffer: str
    store: bool
    requests: int = 0
    requested: int = 0
    sectors: int = 0
    minimum: int = 0

    @property
    def sectors_per_request(self) -> float:
        """The mean number of 32-byte sectors per request."""
        return self.sectors / max(self.requests, 1)

    def __str__(self) -> str:
        action = "writes" if self.store else "reads"
        sectors = f"{self.sectors_per_request:.2f} sectors, at least {self.minimum / max(self.requests, 1):.2f}"
        return f"{self.instruction} {action} {self.buffer}: {self.requests} requests of {sectors}"


@dataclass(frozen=True, slots=True)
class Traffic:
    """The result of `Bytes`: totals in bytes, each byte counted once, and every access."""

    buffers: tuple[BufferTraffic, ...]
    accesses: tuple[AccessTraffic, ...]

    @property
    def read(self) -> int:
        """Bytes read, each counted once."""
        return sum(buffer.read for buffer in self.buffers)

    @property
    def written(self) -> int:
        """Bytes written, each counted once."""
        return sum(buffer.written for buffer in self.buffers)

    @property
    def requested(self) -> int:
        """Bytes requested, counted for each lane."""
        return sum(access.requested for access in self.accesses)

    @property
    def sectors(self) -> int:
        """Sectors requested."""
        return sum(access.sectors for access in self.accesses)

    @property
    def sectors_per_request(self) -> float:
        """The mean number of sectors per request."""
        return self.sectors / max(sum(access.requests for access in self.accesses), 1)

    @property
    def sector_excess(self) -> float:
        """Sectors divided by the minimum for the same requests; 1.0 is perfect."""
        return self.sectors / max(sum(access.minimum for access in self.accesses), 1)


class Bytes(Observer):
    """Counts bytes and sectors of global memory. `result()` is a `Traffic`."""

    name = "bytes"

    def begin(self, launch: Launch) -> None:
        self._read: NDArray[np.uint8] = np.zeros(launch.device.nbytes, np.uint8)
        self._written: NDArray[np.uint8] = np.zeros(launch.device.nbytes, np.uint8)
        allocations = launch.device.allocations
        self._starts, self._names = [each.start for each in allocations], [each.name for each in allocations]
        self._accesses: dict[tuple[int, int, bool], AccessTraffic] = {}
        self._buffers: tuple[BufferTraffic, ...] = ()

    def read_global(self, context: Context, instruction: Instruction, index: Any, mask: Mask, size: int) -> None:
        self._count(context, instruction, index, mask, size, store=False)

    def write_global(
        self, context: Context, instruction: Instruction, index: Any, mask: Mask, size: int, values: list[Any]
    ) -> None:
        self._count(context, instruction, index, mask, size, store=True)

    def atomic_global(
        self, context: Context, instruction: Instruction, index: Any, mask: Any, size: int, order: str, served: Any
    ) -> None:
        self._count(context, instruction, index, mask, size, store=True)
        self._mark(self._read, index[mask], size)

    def move_tile(
        self, context: Context, instruction: Instruction, row: int, thread: int, index: Any, size: int, *, store: bool
    ) -> None:
        if not index.size:
            return
        self._mark(self._written if store else self._read, index, size)
        access = self._access(context, instruction, int(index[0]), store)
        sectors = len(np.unique(index // SECTOR))
        access.requests += 1
        access.requested += index.size * size
        access.sectors += sectors
        access.minimum += -(-index.size * size // SECTOR)

    def _count(
        self, context: Context, instruction: Instruction, index: Any, mask: Mask, size: int, *, store: bool
    ) -> None:
        offsets, active = by_warp(context, index, mask)
        if not len(offsets):
            return
        lanes = offsets.size if active is None else int(np.count_nonzero(active))
        access = self._access(context, instruction, int(offsets[0, 0]), store)
        access.requests += len(offsets)
        access.requested += lanes * size
        access.sectors += int(distinct(offsets >> 5).sum())
        access.minimum += int((-(-distinct(offsets) * size // SECTOR)).sum())
        self._mark(self._written if store else self._read, index if mask is None else offsets, size)

    @staticmethod
    def _mark(marks: NDArray[np.uint8], offsets: Any, size: int) -> None:
        shift = size.bit_length() - 1
        if size <= 8:
            marks.view(_ONES[size].dtype)[offsets >> shift] = _ONES[size]
        else:
            marks.view(np.uint64).reshape(-1, size // 8)[offsets >> shift] = _ONES[8]

    def _access(self, context: Context, instruction: Instruction, offset: int, store: bool) -> AccessTraffic:
        buffer = bisect_right(self._starts, offset) - 1
        key = (instruction.index, buffer, store)
        found = self._accesses.get(key)
        if found is None:
            text = place(context.launch.kernel, instruction)
            found = self._accesses[key] = AccessTraffic(text, self._names[buffer] if buffer >= 0 else "", store)
        return found

    def finish(self, launch: Launch) -> None:
        rows: list[BufferTraffic] = []
        for each in launch.device.allocations:
            read = int(np.count_nonzero(self._read[each.start : each.end]))
            written = int(np.count_nonzero(self._written[each.start : each.end]))
            if read or written:
                rows.append(BufferTraffic(each.name, each.end - each.start, read, written))
        self._buffers = tuple(rows)

    def result(self) -> Traffic:
        """Bytes and sectors of the launch."""
        return Traffic(self._buffers, tuple(self._accesses.values()))
