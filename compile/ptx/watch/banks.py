"""Banks: the wavefronts that shared memory needs for each request, compared with the minimum.

Shared memory has 32 banks of 4 bytes; different words of one bank are accessed one after the other. 16-byte accesses
are processed for 8 lanes at a time, 8-byte accesses for 16 (CUDA C++ Programming Guide, "Shared Memory"). The count is
a model: hardware may merge more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from bringup.compile.ptx.assembly.kernel import Instruction
from bringup.compile.ptx.hardware.context import Context, Launch, Mask
from bringup.compile.ptx.hardware.observe import Observer
from bringup.compile.ptx.watch.lanes import by_warp, place

BANKS = 32


@dataclass(slots=True)
class BankUse:
    """The requests (one per warp) of one instruction, its wavefronts, and the minimum for the same words."""

    instruction: str
    requests: int = 0
    wavefronts: int = 0
    minimum: int = 0

    @property
    def excess(self) -> float:
        """Wavefronts divided by the minimum; 1.0 without conflicts."""
        return self.wavefronts / max(self.minimum, 1)

    def __str__(self) -> str:
        counts = f"{self.requests} requests, {self.wavefronts} wavefronts, {self.minimum} without conflicts"
        return f"{self.instruction}: {counts}"


class Banks(Observer):
    """Counts bank conflicts. `result()` is a tuple of `BankUse`."""

    name = "banks"

    def begin(self, launch: Launch) -> None:
        self._uses: dict[int, BankUse] = {}

    def read_shared(self, context: Context, instruction: Instruction, relative: Any, mask: Mask, size: int) -> None:
        self._count(context, instruction, relative, mask, size)

    def write_shared(
        self, context: Context, instruction: Instruction, relative: Any, mask: Mask, size: int, values: list[Any]
    ) -> None:
        self._count(context, instruction, relative, mask, size)

    def _count(self, context: Context, instruction: Instruction, relative: Any, mask: Mask, size: int) -> None:
        offsets, active = by_warp(context, relative, mask)
        use = self._uses.get(instruction.index)
        if use is None:
            use = self._uses[instruction.index] = BankUse(place(context.launch.kernel, instruction))
        use.requests += len(offsets)
        words_each = max(1, size // 4)
        offsets = offsets.reshape(-1, BANKS // words_each)
        if active is not None:
            parts = active.reshape(offsets.shape)
            some = parts.any(1)
            offsets, parts = offsets[some], parts[some]
            if not len(offsets):
                return
            offsets = np.where(parts, offsets, offsets[np.arange(len(offsets)), parts.argmax(1)][:, None])
        words = np.sort(((offsets >> 2)[:, :, None] + np.arange(words_each)).reshape(len(offsets), -1), axis=1)
        first = np.ones(words.shape, np.bool_)
        first[:, 1:] = words[:, 1:] != words[:, :-1]
        banks = np.arange(len(words))[:, None] * BANKS + words % BANKS
        counts = np.bincount(banks[first], minlength=BANKS * len(words)).reshape(-1, BANKS)
        use.wavefronts += int(counts.max(1).sum()) if len(words) else 0
        use.minimum += int((-(-first.sum(1) // BANKS)).sum())

    def result(self) -> tuple[BankUse, ...]:
        """The use of shared memory by instruction, in the order of their first execution."""
        return tuple(self._uses.values())
