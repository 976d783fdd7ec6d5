"""Order: accesses of different blocks of one launch to global memory without a happens-before relation.

A block may read what another stored only after a release by that one and an acquire of its own (PTX ISA, "Memory
Consistency Model": release and acquire patterns, causality order). The same holds for a store over what another block
has read.

Vector clocks have an entry for each warp of the grid. A release adds what its warp knows to the released word, an
acquire of that word adds this to what its warp knows, and a barrier joins the warps of a block. Read-modify-writes
continue the word's release sequence. Fences without an atomic operation, and atomics of scope .cta, order nothing here.
An unordered read and store of one address are found in either order. Two readers of each address are stored: the last,
and the last of another block; an ordered pair may hide a third. Tensor loads are not stored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bringup.compile.ptx.assembly.kernel import Instruction
from bringup.compile.ptx.hardware.context import Context, Launch, Mask
from bringup.compile.ptx.hardware.observe import Observer
from bringup.compile.ptx.watch.clocks import WARP, Clocks
from bringup.compile.ptx.watch.lanes import active_pairs, granules, place, smallest_access

Array = NDArray[Any]
NO_RELEASE = "another block's store read without its release"
NO_ACQUIRE = "another block's store read without an acquire"
TWO_WRITERS = "two blocks write one place without an order"
READ_BEFORE = "a store over what another block reads without an order"
_TIME = 0xFFFFFFFF
_STRONG = ("acquire", "relaxed", "release", "volatile")


@dataclass(slots=True)
class Disorder:
    """Unordered accesses of one instruction: `kind`, their count, and the address and blocks of the first."""

    kind: str
    instruction: str
    count: int
    place: str
    block: int
    other: int

    def __str__(self) -> str:
        action = "read" if self.kind == READ_BEFORE else "stored"
        where = f"first in block {self.block} at {self.place}, {action} by block {self.other}"
        return f"{self.kind}: {self.instruction}; {self.count} accesses, {where}"


class _State:
    """For a context: the clocks within its blocks, and what each warp knows of all warps of the grid, if anything."""

    def __init__(self, clocks: Clocks, known: NDArray[np.int32] | None) -> None:
        self.clocks, self.known = clocks, known

    def rows(self, rows: Array) -> _State:
        return _State(self.clocks.rows(rows), None if self.known is None else self.known[rows])


class _Readers:
    """For each granule: the last reader, and the last of a different block, as stamps (column + 1) << 32 | time."""

    def __init__(self, nbytes: int, granule: int, warps: int) -> None:
        self._granule, self._warps = granule, warps
        self._last = np.zeros(nbytes // granule, np.int64)
        self._other = np.zeros(nbytes // granule, np.int64)

    def of(self, granule: Array) -> tuple[Array, Array]:
        return self._last[granule], self._other[granule]

    def add(self, context: Context, clocks: Clocks, index: Any, mask: Mask, size: int) -> None:
        """Adds reads. They are aligned to their size, so all granules of an access are set at once."""
        each = max(1, size // self._granule)
        last, other = (stamps[: len(stamps) // each * each].reshape(-1, each) for stamps in (self._last, self._other))
        columns = context.blocks[:, None] * self._warps + context.launch.thread // WARP
        stamps = context.full((columns + 1 << 32) | clocks.time[:, None])
        at = context.full(index) // (self._granule * each)
        if mask is not None:
            active = context.full(mask)
            at, stamps = at[active], stamps[active]
        at, stamps = at.reshape(-1), stamps.reshape(-1, 1)
        before = last[at]
        last[at] = stamps
        now = self._block(last[at])
        for earlier in (before, np.broadcast_to(stamps, before.shape)):
            lane, part = np.nonzero((earlier != 0) & (self._block(earlier) != now))
            other[at[lane], part] = earlier[lane, part]

    def _block(self, stamps: Array) -> Array:
        return ((stamps >> 32) - 1) // self._warps


class Order(Observer):
    """Finds accesses that nothing orders after those of another block. `result()` is a tuple of `Disorder`."""

    name = "order"

    def begin(self, launch: Launch) -> None:
        self._granule = smallest_access(launch.kernel, "global")
        self._warps = -(-launch.kernel.threads // WARP)
        x, y, z = launch.grid
        self._columns = x * y * z * self._warps
        # the last store to each granule: (column + 1) << 32 | time; 0 if this launch has not stored to it
        self._stores = np.zeros(launch.device.nbytes // self._granule, np.int64)
        self._readers = _Readers(launch.device.nbytes, self._granule, self._warps)
        self._released: dict[int, NDArray[np.int32]] = {}
        self._found: dict[tuple[str, int], Disorder] = {}

    def attach(self, context: Context) -> None:
        context.watched[self] = _State(Clocks(context.block_count, context.thread_count), None)

    def split(self, context: Context, part: Context, rows: NDArray[np.int64]) -> None:
        part.watched[self] = context.watched[self].rows(rows)

    def result(self) -> tuple[Disorder, ...]:
        """The unordered accesses, by instruction."""
        return tuple(self._found.values())

    # accesses

    def read_global(self, context: Context, instruction: Instruction, index: Any, mask: Mask, size: int) -> None:
        acquires = "acquire" in instruction.opcode and "cta" not in instruction.opcode
        if acquires:
            for offset, row, thread in self._lanes(context, index, mask):
                self._acquire(context, row, thread // WARP, offset)
        if any(part in _STRONG for part in instruction.opcode):
            return
        state: _State = context.watched[self]
        self._readers.add(context, state.clocks, index, mask, size)
        first = (context.full(index) if mask is None else context.full(index)[context.full(mask)]) // self._granule
        if not self._stores[first].any():  # a store sets the first granule together with the rest
            return
        self._check(context, instruction, index, mask, size, store=False)

    def write_global(
        self, context: Context, instruction: Instruction, index: Any, mask: Mask, size: int, values: list[Any]
    ) -> None:
        self._check(context, instruction, index, mask, size, store=True)
        state: _State = context.watched[self]
        offsets, rows, threads = active_pairs(context, index, mask)
        granule, rows, warps = granules(offsets, size, self._granule, rows, threads // WARP)
        for before in self._readers.of(granule):
            unknown = self._unknown(context, before, rows, warps)
            self._report(context, instruction, READ_BEFORE, unknown, granule * self._granule, before, rows)
        columns = context.blocks[rows] * self._warps + warps + 1
        stamps = (columns << 32) | state.clocks.time[rows]
        self._stores[granule] = stamps
        last = self._stores[granule]
        other = ((last >> 32) - 1) // self._warps != context.blocks[rows]
        self._report(context, instruction, TWO_WRITERS, other, granule * self._granule, last, rows)
        if "release" in instruction.opcode and "cta" not in instruction.opcode:
            for offset, row, thread in self._lanes(context, index, mask):
                self._release(context, row, thread // WARP, offset)

    def atomic_global(
        self, context: Context, instruction: Instruction, index: Any, mask: Any, size: int, order: str, served: Any
    ) -> None:
        if order == "relaxed" or "cta" in instruction.opcode:
            return
        lanes = self._lanes(context, index, mask)
        for turn in range(len(lanes)):
            offset, row, thread = lanes[int(served[turn])]
            if order in ("acquire", "acq_rel"):
                self._acquire(context, row, thread // WARP, offset)
            if order in ("release", "acq_rel"):
                self._release(context, row, thread // WARP, offset)

    def move_tile(
        self, context: Context, instruction: Instruction, row: int, thread: int, index: Any, size: int, *, store: bool
    ) -> None:
        if store or not index.size or not self._stores[index // self._granule].any():
            return
        before = self._stores[index // self._granule]
        bad = (before != 0) & ~np.isin(
            (before >> 32) - 1, context.blocks[:, None] * self._warps + np.arange(self._warps)
        )
        rows: Array = np.full(len(before), row, np.int64)
        self._report(context, instruction, NO_ACQUIRE, bad, index, before, rows)

    @staticmethod
    def _lanes(context: Context, index: Any, mask: Mask) -> list[tuple[int, int, int]]:
        """(offset, row, thread) of each active lane."""
        columns: list[list[int]] = [each.tolist() for each in active_pairs(context, index, mask)]
        return [(offset, row, thread) for offset, row, thread in zip(*columns, strict=True)]

    # order

    def barrier(self, context: Context, lanes: Mask, instruction: Instruction) -> None:
        state: _State = context.watched[self]
        if state.known is not None:
            taking = (
                np.ones(state.known.shape[:2], np.bool_) if lanes is None else state.clocks.warps_of(context, lanes)
            )
            joined = np.where(taking[:, :, None], state.known, 0).max(1)
            state.known = np.where(taking[:, :, None], np.maximum(state.known, joined[:, None, :]), state.known)
        state.clocks.barrier(context, lanes)

    def arrive(self, context: Context, instruction: Instruction, row: int, threads: Any, barrier: int) -> None:
        context.watched[self].clocks.arrive(row, threads, barrier)

    def end_phase(self, context: Context, row: int, barrier: int) -> None:
        context.watched[self].clocks.end_phase(row, barrier)

    def pass_phase(self, context: Context, instruction: Instruction, row: int, threads: Any, barrier: int) -> None:
        """A warp that passes is assumed to know what its block knows of other blocks, so a fault may be missed."""
        state: _State = context.watched[self]
        state.clocks.pass_phase(row, threads, barrier)
        if state.known is not None:
            warps = np.unique(threads // WARP)
            state.known[row, warps] = state.known[row].max(0)

    def _acquire(self, context: Context, row: int, warp: int, offset: int) -> None:
        released = self._released.get(offset)
        if released is None:
            return
        state: _State = context.watched[self]
        if state.known is None:
            state.known = np.zeros((context.block_count, self._warps, self._columns), np.int32)
        np.maximum(state.known[row, warp], released, out=state.known[row, warp])

    def _release(self, context: Context, row: int, warp: int, offset: int) -> None:
        state: _State = context.watched[self]
        released = self._released.get(offset)
        if released is None:
            released = self._released[offset] = np.zeros(self._columns, np.int32)
        if state.known is not None:
            np.maximum(released, state.known[row, warp], out=released)
        first = int(context.blocks[row]) * self._warps
        inside = state.clocks.published(row, warp)[: self._warps]
        released[first : first + self._warps] = np.maximum(released[first : first + self._warps], inside)
        state.clocks.time[row] += 1

    def _unknown(self, context: Context, before: Array, rows: Array, warps: Array) -> Array:
        """Which accesses, by their stamps, are of another block and not known to the warp to have happened before."""
        columns = (before >> 32) - 1
        other = (columns >= 0) & (columns // self._warps != context.blocks[rows])
        state: _State = context.watched[self]
        if state.known is not None:
            other[other] = state.known[rows[other], warps[other], columns[other]] < (before[other] & _TIME)
        return other

    def _check(
        self, context: Context, instruction: Instruction, index: Any, mask: Mask, size: int, *, store: bool
    ) -> None:
        offsets, rows, threads = active_pairs(context, index, mask)
        granule, rows, warps = granules(offsets, size, self._granule, rows, threads // WARP)
        before = self._stores[granule]
        unknown = self._unknown(context, before, rows, warps)
        if not unknown.any():
            return
        granule, rows, before = (each[unknown] for each in (granule, rows, before))
        columns, times = (before >> 32) - 1, before & _TIME
        unknown = unknown[unknown]
        if store:
            self._report(context, instruction, TWO_WRITERS, unknown, granule * self._granule, before, rows)
            return
        released = np.zeros(times.shape, np.bool_)
        for known in self._released.values():
            released |= known[columns] >= times
        self._report(context, instruction, NO_RELEASE, unknown & ~released, granule * self._granule, before, rows)
        self._report(context, instruction, NO_ACQUIRE, unknown & released, granule * self._granule, before, rows)

    def _report(
        self,
        context: Context,
        instruction: Instruction,
        kind: str,
        bad: Array,
        offsets: Array,
        stores: Array,
        rows: Array,
    ) -> None:
        if not bad.any():
            return
        key = kind, instruction.index
        found = self._found.get(key)
        if found is None:
            first = int(np.argmax(bad))
            where = context.device.describe(int(offsets[first]))
            other = (int(stores[first] >> 32) - 1) // self._warps
            text = place(context.launch.kernel, instruction)
            found = Disorder(kind, text, 0, where, int(context.blocks[rows[first]]), other)
            self._found[key] = found
        found.count += int(np.count_nonzero(bad))
