"""Unwritten: reads of global memory that neither the host nor a kernel has written."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bringup.compile.ptx.assembly.kernel import Instruction
from bringup.compile.ptx.hardware.context import Context, Launch, Mask
from bringup.compile.ptx.hardware.device import UNSIGNED, Device
from bringup.compile.ptx.hardware.observe import Observer
from bringup.compile.ptx.hardware.spaces import GLOBAL_BASE
from bringup.compile.ptx.watch.lanes import active_pairs
from bringup.compile.ptx.watch.wrong_accesses import WrongAccess, WrongAccesses

KIND = "read of global memory never written"


class Unwritten(Observer):
    """Finds such reads. It can observe several launches on a device in sequence: memory that they store to is written.
    `result()` is a tuple of `WrongAccess`, of the last launch.
    """

    name = "unwritten"

    def __init__(self, device: Device) -> None:
        self._written: NDArray[np.uint8] = np.zeros(device.nbytes, np.uint8)  # 1: the byte is written
        self._found = WrongAccesses(KIND)

    def mark(self, address: int, nbytes: int, parts: NDArray[np.bool_] | None = None) -> None:
        """Marks memory as written by the host: all `nbytes` at an address, or those equal parts true in `parts`."""
        start = address - GLOBAL_BASE
        range_ = self._written[start : start + nbytes]
        if parts is None:
            range_[:] = 1
        else:
            range_.reshape(len(parts), -1)[parts] = 1

    def begin(self, launch: Launch) -> None:
        self._found = WrongAccesses(KIND)

    def result(self) -> tuple[WrongAccess, ...]:
        """The reads, by instruction."""
        return self._found.all()

    def read_global(self, context: Context, instruction: Instruction, index: Any, mask: Mask, size: int) -> None:
        offsets, rows, _ = active_pairs(context, index, mask)
        self._check(context, instruction, offsets, rows, size)

    def _check(self, context: Context, instruction: Instruction, offsets: Any, rows: Any, size: int) -> None:
        self._found.add(context, instruction, offsets, rows, ~self._all(offsets, size))

    def write_global(
        self, context: Context, instruction: Instruction, index: Any, mask: Mask, size: int, values: list[Any]
    ) -> None:
        self._store(active_pairs(context, index, mask)[0], size)

    def atomic_global(
        self, context: Context, instruction: Instruction, index: Any, mask: Any, size: int, order: str, served: Any
    ) -> None:
        self.read_global(context, instruction, index, mask, size)
        self._store(active_pairs(context, index, mask)[0], size)

    def move_tile(
        self, context: Context, instruction: Instruction, row: int, thread: int, index: Any, size: int, *, store: bool
    ) -> None:
        if store:
            self._store(index, size)
        elif index.size:
            self._check(context, instruction, index, np.full(index.shape, row), size)

    def _all(self, offsets: Any, size: int) -> Any:
        width = min(size, 8)
        flags = self._written.view(UNSIGNED[width])
        ones = np.full(width, 1, np.uint8).view(UNSIGNED[width])[0]
        found = flags[offsets // width] == ones
        for more in range(width, size, width):
            found &= flags[(offsets + more) // width] == ones
        return found

    def _store(self, offsets: Any, size: int) -> None:
        width = min(size, 8)
        flags = self._written.view(UNSIGNED[width])
        ones = np.full(width, 1, np.uint8).view(UNSIGNED[width])[0]
        for more in range(0, size, width):
            flags[(offsets + more) // width] = ones
