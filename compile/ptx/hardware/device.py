"""Device memory: named allocations in one address space, separated by red zones, so that every access is checked."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from bringup.compile.ptx.assembly.errors import Fault
from bringup.compile.ptx.hardware.spaces import GLOBAL_BASE

ALIGNMENT = 256  # of cuMemAlloc: CUDA Driver API, "Memory Management"
RED_ZONE = 256  # unallocated bytes between allocations
POISON = 0xFF  # initial byte: NaN in every float format, -1 in integers
UNSIGNED: dict[int, np.dtype[Any]] = {1: np.dtype("u1"), 2: np.dtype("u2"), 4: np.dtype("u4"), 8: np.dtype("u8")}


@dataclass(frozen=True, slots=True)
class Allocation:
    """A range of device memory: the offsets of its first byte and of the byte after its last."""

    start: int
    end: int
    name: str


class Device:
    """The memory of one GPU, of `nbytes` bytes. Pages of the host are allocated on first use.

    Addresses start at `GLOBAL_BASE`; an offset is an address minus that. New memory contains `POISON`, because a kernel
    may not rely on its value. A freed range is reused only if no unused memory is left, so that accesses after free are
    found.
    """

    def __init__(self, nbytes: int = 1 << 30, red_zone: int = RED_ZONE) -> None:
        self.nbytes = -(-nbytes // ALIGNMENT) * ALIGNMENT
        self.bytes: NDArray[np.uint8] = np.zeros(self.nbytes, np.uint8)
        self._red_zone = red_zone
        self._top = 4096
        self._live: list[Allocation] = []
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._freed: list[Allocation] = []
        self._views: dict[tuple[int, int], NDArray[Any]] = {}

    @property
    def allocations(self) -> tuple[Allocation, ...]:
        """The live allocations, by address."""
        return tuple(self._live)

    def alloc(self, nbytes: int, name: str = "", *, fresh: bool = True) -> int:
        """The address of `nbytes` new bytes, aligned to `ALIGNMENT`. Raises MemoryError if the device is full.

        With `fresh` false, the bytes are not initialised, so that a very large allocation uses no pages of the host.
        """
        nbytes = max(int(nbytes), 1)
        start = -(-(self._top + self._red_zone) // ALIGNMENT) * ALIGNMENT
        if start + nbytes + self._red_zone <= self.nbytes:
            self._top = start + nbytes
        else:
            start = self._reused(nbytes)
        return self._insert(
            Allocation(start, start + nbytes, name or f"allocation at 0x{GLOBAL_BASE + start:x}"), fresh
        )

    def _reused(self, nbytes: int) -> int:
        for freed in self._freed:
            if freed.end - freed.start >= nbytes:
                self._freed.remove(freed)
                return freed.start
        raise MemoryError(f"the emulated device has {self.nbytes} bytes: no room for {nbytes} more")

    def _insert(self, allocation: Allocation, fresh: bool) -> int:
        position = bisect_right(self._starts, allocation.start)
        self._live.insert(position, allocation)
        self._starts.insert(position, allocation.start)
        self._ends.insert(position, allocation.end)
        if fresh:
            self.bytes[allocation.start : allocation.end] = POISON
        return GLOBAL_BASE + allocation.start

    def free(self, address: int) -> None:
        """Frees the allocation at `address`. Raises Fault if no allocation begins there."""
        position = bisect_right(self._starts, address - GLOBAL_BASE) - 1
        if position < 0 or self._starts[position] != address - GLOBAL_BASE:
            raise Fault(
                f"free of 0x{address:x}: {self.describe(address - GLOBAL_BASE)}, not the begin of an allocation"
            )
        del self._starts[position], self._ends[position]
        self._freed.append(self._live.pop(position))

    def put(self, array: NDArray[Any], name: str = "") -> int:
        """Allocates memory with the bytes of `array`, and returns its address."""
        address = self.alloc(array.nbytes, name)
        self.write(address, array)
        return address

    def write(self, address: int, array: NDArray[Any]) -> None:
        """Copies an array to `address`. Raises Fault if it does not fit in one allocation."""
        flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        start = self._host_range(address, flat.size, "write")
        self.bytes[start : start + flat.size] = flat

    def read(self, address: int, dtype: DTypeLike, shape: Sequence[int]) -> NDArray[Any]:
        """A copy of the array at `address`. Raises Fault if it is not within one allocation."""
        kind: np.dtype[Any] = np.dtype(dtype)
        nbytes = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
        start = self._host_range(address, nbytes, "read")
        return self.bytes[start : start + nbytes].copy().view(kind).reshape(tuple(shape))

    def fill(self, address: int, byte: int, nbytes: int) -> None:
        """Sets `nbytes` bytes at `address`. Raises Fault if they are not within one allocation."""
        start = self._host_range(address, nbytes, "fill")
        self.bytes[start : start + nbytes] = byte

    def _host_range(self, address: int, nbytes: int, action: str) -> int:
        start = address - GLOBAL_BASE
        position = bisect_right(self._starts, start) - 1
        if nbytes and (position < 0 or start + nbytes > self._ends[position]):
            raise Fault(f"{action} of {nbytes} bytes by the host at {self.describe(start)}: out of bounds")
        return start

    def vectors(self, size: int, width: int) -> NDArray[Any]:
        """A view of the memory: rows of `size` bytes in elements of `width` bytes; flat if the two are equal."""
        view = self._views.get((size, width))
        if view is None:
            flat = self.bytes.view(UNSIGNED[width])
            view = flat if size == width else flat.reshape(-1, size // width)
            self._views[size, width] = view
        return view

    def accepts(self, offsets: NDArray[np.int64], size: int) -> bool:
        """Whether all accesses are aligned and in the same live allocation. Fast; may be False for valid accesses."""
        flat = offsets.reshape(-1)
        low, high = int(np.minimum.reduce(flat)), int(np.maximum.reduce(flat))
        position = bisect_right(self._starts, low) - 1
        if position < 0 or high + size > self._ends[position]:
            return False
        return size == 1 or not int(np.bitwise_or.reduce(flat)) & (size - 1)

    def invalid(self, offsets: NDArray[np.int64], size: int) -> NDArray[np.bool_]:
        """Which accesses of `size` bytes are not within one live allocation, or not aligned to `size`."""
        if not self._live:
            return np.ones(offsets.shape, np.bool_)
        ends = np.asarray(self._ends)
        position = np.searchsorted(np.asarray(self._starts), offsets, "right") - 1
        outside = (position < 0) | (offsets + size > ends[np.maximum(position, 0)])
        return outside | (offsets % size != 0)

    def describe(self, offset: int) -> str:
        """A description of an offset: the allocation and the byte in it, or the nearest allocation before it."""
        position = bisect_right(self._starts, offset) - 1
        near = self._live[position] if position >= 0 else None
        freed = next((old for old in reversed(self._freed) if old.start <= offset < old.end), None)
        if freed is not None and (near is None or offset >= near.end):
            return f"{freed.name} + {offset - freed.start}, which was freed"
        if near is None or offset >= self.nbytes:
            return f"0x{GLOBAL_BASE + offset:x}, which is no device address"
        return f"{near.name} + {offset - near.start} (of {near.end - near.start} bytes)"

    def overflowed(self, offset: int) -> str | None:
        """A description of the offset without a 32-bit overflow of an element index, for elements of 1 to 8 bytes.

        None if that offset, a multiple of 2^32 elements away, is in no allocation.
        """
        for bytes_ in (1, 2, 4, 8):
            for turns in (1, -1):
                other = offset + turns * bytes_ * (1 << 32)
                position = bisect_right(self._starts, other) - 1
                if position >= 0 and other < self._ends[position]:
                    return self.describe(other)
        return None
