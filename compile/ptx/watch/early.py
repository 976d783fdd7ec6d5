"""Early: accesses to memory that an earlier launch may write, before this launch waits for it.

The previous launch may run until griddepcontrol.wait (PTX ISA, `griddepcontrol`). So a read of memory that it writes
may return the old value, and a store may be overwritten. In the emulator, launches run in order, so only this shows it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bringup.compile.ptx.assembly.kernel import Instruction
from bringup.compile.ptx.hardware.context import Context, Launch, Mask
from bringup.compile.ptx.hardware.device import Device
from bringup.compile.ptx.hardware.observe import Observer
from bringup.compile.ptx.hardware.spaces import GLOBAL_BASE
from bringup.compile.ptx.hardware.tensormap import TENSOR_MAP_BYTES
from bringup.compile.ptx.watch.lanes import active_pairs
from bringup.compile.ptx.watch.wrong_accesses import WrongAccess, WrongAccesses

KIND = "access before the wait for the launch before"


class Early(Observer):
    """Finds such accesses of kernels that wait; other launches start after all earlier ones. `result()` is a tuple of
    `WrongAccess`.
    """

    name = "early"

    def __init__(self, device: Device) -> None:
        self._fixed: NDArray[np.bool_] = np.zeros(device.nbytes, np.bool_)
        self._found = WrongAccesses(KIND)
        self._waits = False

    def mark(self, address: int, fixed: NDArray[np.bool_] | bool, nbytes: int) -> None:
        """Marks bytes from an address that no earlier launch writes: all `nbytes`, or those true in `fixed`."""
        start = address - GLOBAL_BASE
        self._fixed[start : start + nbytes] = fixed

    def begin(self, launch: Launch) -> None:
        self._found = WrongAccesses(KIND)
        instructions = launch.kernel.instructions
        self._waits = any(each.base == "griddepcontrol" and each.has("wait") for each in instructions)

    def attach(self, context: Context) -> None:
        context.watched[self] = np.zeros((context.block_count, context.thread_count), np.bool_)

    def split(self, context: Context, part: Context, rows: NDArray[np.int64]) -> None:
        part.watched[self] = context.watched[self][rows]

    def wait_for_launches(self, context: Context, instruction: Instruction, mask: Mask) -> None:
        waited = context.watched[self]
        waited[...] = True if mask is None else waited | context.full(mask)

    def read_global(self, context: Context, instruction: Instruction, index: Any, mask: Mask, size: int) -> None:
        self._check(context, instruction, index, mask, size, store=False)

    def write_global(
        self, context: Context, instruction: Instruction, index: Any, mask: Mask, size: int, values: list[Any]
    ) -> None:
        self._check(context, instruction, index, mask, size, store=True)

    def atomic_global(
        self, context: Context, instruction: Instruction, index: Any, mask: Any, size: int, order: str, served: Any
    ) -> None:
        self._check(context, instruction, index, mask, size, store=True)

    def move_tile(
        self, context: Context, instruction: Instruction, row: int, thread: int, index: Any, size: int, *, store: bool
    ) -> None:
        self._check_tile(context, instruction, row, thread, np.asarray(index), size, store=store)

    def store_map(self, context: Context, instruction: Instruction, row: int, thread: int, offset: int) -> None:
        self._check_tile(context, instruction, row, thread, np.asarray([offset]), TENSOR_MAP_BYTES, store=True)

    def _check(
        self, context: Context, instruction: Instruction, index: Any, mask: Mask, size: int, *, store: bool
    ) -> None:
        waited = context.watched[self]
        if not self._waits or waited.all():
            return
        offsets, rows, threads = active_pairs(context, index, mask)
        self._note(context, instruction, offsets, rows, ~waited[rows, threads], size, store=store)

    def _check_tile(
        self, context: Context, instruction: Instruction, row: int, thread: int, offsets: Any, size: int, *, store: bool
    ) -> None:
        if self._waits and not context.watched[self][row, thread]:
            rows, before = np.full(offsets.shape, row), np.ones(offsets.shape, np.bool_)
            self._note(context, instruction, offsets, rows, before, size, store=store)

    def _note(
        self,
        context: Context,
        instruction: Instruction,
        offsets: Any,
        rows: Any,
        before: Any,
        size: int,
        *,
        store: bool,
    ) -> None:
        """Adds the accesses `before` the wait, but for reads of memory that no earlier launch writes."""
        bad = before
        if not store:
            bad = bad & ~self._fixed[offsets[:, None] + np.arange(size)].all(1)
        self._found.add(context, instruction, offsets, rows, bad)

    def result(self) -> tuple[WrongAccess, ...]:
        """The accesses, by instruction."""
        return self._found.all()
