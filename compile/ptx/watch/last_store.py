"""LastStore: the instruction and the block that stored a byte of global memory last."""

from __future__ import annotations

from typing import Any

import numpy as np

from bringup.compile.ptx.assembly.kernel import Instruction
from bringup.compile.ptx.hardware.context import Context, Mask
from bringup.compile.ptx.hardware.observe import Observer
from bringup.compile.ptx.hardware.spaces import GLOBAL_BASE
from bringup.compile.ptx.watch.lanes import active_pairs, place


class LastStore(Observer):
    """Observes the byte at an address. `result()` describes its last store; None if there was none."""

    name = "last_store"

    def __init__(self, address: int) -> None:
        self._offset = address - GLOBAL_BASE
        self._found: str | None = None

    def result(self) -> str | None:
        """The block, by its index in the grid, and the instruction."""
        return self._found

    def write_global(
        self, context: Context, instruction: Instruction, index: Any, mask: Mask, size: int, values: list[Any]
    ) -> None:
        offsets, rows, _ = active_pairs(context, index, mask)
        self._note(context, instruction, offsets, rows, size)

    def atomic_global(
        self, context: Context, instruction: Instruction, index: Any, mask: Any, size: int, order: str, served: Any
    ) -> None:
        offsets, rows, _ = active_pairs(context, index, mask)
        self._note(context, instruction, offsets, rows, size)

    def move_tile(
        self, context: Context, instruction: Instruction, row: int, thread: int, index: Any, size: int, *, store: bool
    ) -> None:
        if store:
            self._note(context, instruction, index, np.full(len(index), row), size)

    def _note(self, context: Context, instruction: Instruction, offsets: Any, rows: Any, size: int) -> None:
        hit = np.flatnonzero((offsets <= self._offset) & (self._offset < offsets + size))
        if hit.size:
            block = int(context.blocks[rows[hit[-1]]])
            x, y, _ = context.launch.grid
            at = block % x, block // x % y, block // (x * y)
            self._found = f"block {at} at {place(context.launch.kernel, instruction)}"
