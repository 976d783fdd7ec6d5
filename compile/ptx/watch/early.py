"""Early: accesses before a launch waits for the one before it, of what an earlier launch may write.

Until griddepcontrol.wait the launch before may still run (PTX ISA, "griddepcontrol"), so a read of what it writes may
give what was there before, and a store may be lost. Here launches run one after the other, and nothing else shows it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bringup.compile.ptx.assembly.kernel import Instruction
from bringup.compile.ptx.hardware.context import Context, Launch, Mask
from bringup.compile.ptx.hardware.device import Device
from bringup.compile.ptx.hardware.observe import Observer
from bringup.compile.ptx.hardware.spaces import GLOBAL_BASE
from bringup.compile.ptx.watch.lanes import active_pairs, place


@dataclass(slots=True)
class EarlyAccess:
    """Accesses of one instruction: how many, and the block and the place of the first."""

    instruction: str
    count: int
    block: int
    place: str

    def __str__(self) -> str:
        return (
            f"access before the wait for the launch before: {self.instruction}; {self.count} accesses, "
            f"first in block {self.block} at {self.place}"
        )


class Early(Observer):
    """Finds them in launches of a kernel that waits; others start when all is done. `result()` is a tuple of
    `EarlyAccess`."""

    name = "early"

    def __init__(self, device: Device) -> None:
        self._fixed: NDArray[np.bool_] = np.zeros(device.nbytes, np.bool_)
        self._found: dict[int, EarlyAccess] = {}
        self._waits = False

    def mark(self, address: int, fixed: NDArray[np.bool_] | bool, nbytes: int) -> None:
        """Which bytes from an address on no launch before writes: all of them, or those that are true."""
        start = address - GLOBAL_BASE
        self._fixed[start : start + nbytes] = fixed

    def begin(self, launch: Launch) -> None:
        self._found = {}
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

    def _check(
        self, context: Context, instruction: Instruction, index: Any, mask: Mask, size: int, *, store: bool
    ) -> None:
        waited = context.watched[self]
        if not self._waits or waited.all():
            return
        offsets, rows, threads = active_pairs(context, index, mask)
        bad = ~waited[rows, threads]
        if not store:
            bad &= ~self._fixed[offsets[:, None] + np.arange(size)].all(1)
        if not bad.any():
            return
        found = self._found.get(instruction.index)
        if found is None:
            first = int(np.argmax(bad))
            where = context.device.describe(int(offsets[first]))
            text, block = place(context.launch.kernel, instruction), int(context.blocks[rows[first]])
            found = self._found[instruction.index] = EarlyAccess(text, 0, block, where)
        found.count += int(np.count_nonzero(bad))

    def result(self) -> tuple[EarlyAccess, ...]:
        """The accesses by instruction."""
        return tuple(self._found.values())
