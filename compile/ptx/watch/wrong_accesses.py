"""Wrong accesses to global memory, by instruction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bringup.compile.ptx.assembly.kernel import Instruction
from bringup.compile.ptx.hardware.context import Context
from bringup.compile.ptx.watch.lanes import place

Array = NDArray[Any]


@dataclass(slots=True)
class WrongAccess:
    """Wrong accesses of one instruction: the error, their count, and the block and address of the first."""

    kind: str
    instruction: str
    count: int
    block: int
    place: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.instruction}; {self.count} accesses, first in block {self.block} at {self.place}"


class WrongAccesses:
    """The wrong accesses that one observer finds in a launch. `kind` describes the error."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._found: dict[int, WrongAccess] = {}

    def add(self, context: Context, instruction: Instruction, offsets: Array, rows: Array, bad: Array) -> None:
        """Adds accesses at `offsets` of device memory by the blocks `rows` of a context, if any of them is `bad`."""
        if not bad.any():
            return
        found = self._found.get(instruction.index)
        if found is None:
            first = int(np.argmax(bad))
            where = context.device.describe(int(offsets[first]))
            text, block = place(context.launch.kernel, instruction), int(context.blocks[rows[first]])
            found = self._found[instruction.index] = WrongAccess(self._kind, text, 0, block, where)
        found.count += int(np.count_nonzero(bad))

    def all(self) -> tuple[WrongAccess, ...]:
        """The wrong accesses by instruction, in the order in which they were found."""
        return tuple(self._found.values())
