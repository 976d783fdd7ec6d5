"""Races: unordered accesses of two warps to the same shared memory, and reads of bytes never written.

The order is that of barriers, barrier objects and waits for asynchronous copies and products (`clocks.py`). The lanes
of one warp are one agent, so races within a warp are not found. Reads of wgmma and of tensor stores, and copies of
cp.async, last until they are waited for; tensor loads write until the phase of their barrier object ends. Only accesses
that run are checked.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bringup.compile.ptx.assembly.kernel import Instruction
from bringup.compile.ptx.hardware.context import Context, Launch, Mask
from bringup.compile.ptx.hardware.observe import Observer
from bringup.compile.ptx.hardware.values import any_lane
from bringup.compile.ptx.watch.clocks import AGENT_BITS, Clocks
from bringup.compile.ptx.watch.lanes import active_pairs, granules, place, smallest_access

Array = NDArray[Any]
_AGENT = (1 << AGENT_BITS) - 1
EQUAL = "write after write of equal values"
UNWRITTEN = "read of bytes never written"


@dataclass(slots=True)
class Race:
    """Racing accesses of one instruction: `kind`, their count, and the block and byte of shared memory of the first.

    `harmless`: two warps wrote the same value, as they do if a layout contains an element twice.
    """

    kind: str
    instruction: str
    count: int
    block: int
    byte: int

    @property
    def harmless(self) -> bool:
        return self.kind == EQUAL

    def __str__(self) -> str:
        first = f"first in block {self.block} at shared memory + {self.byte}"
        return f"{self.kind}: {self.instruction}; {self.count} accesses, {first}"


class _State:
    """For a context: its clocks, and for each granule of shared memory the last write and the last read of each agent.

    A write is time << AGENT_BITS | agent; 0: never written. `latest` is the time of the last read of any agent.
    """

    def __init__(self, clocks: Clocks, writes: Array, reads: Array, latest: Array) -> None:
        self.clocks = clocks
        self.size = writes.shape[1]
        self.tables = writes, reads, latest
        self.writes, self.reads, self.latest = writes.reshape(-1), reads.reshape(-1), latest.reshape(-1)

    @classmethod
    def create(cls, blocks: int, threads: int, size: int) -> _State:
        clocks = Clocks(blocks, threads)
        shapes = (blocks, size), (blocks, clocks.copier, size), (blocks, size)
        return cls(clocks, *(np.zeros(shape, np.int32) for shape in shapes))

    def rows(self, rows: Array) -> _State:
        return _State(self.clocks.rows(rows), *(table[rows] for table in self.tables))

    def unordered_writes(self, index: Array, rows: Array, warps: Array) -> Array:
        """Whether the last write is unknown to the warp."""
        before = self.writes[index]
        bad = ((before >> AGENT_BITS) > self.clocks.base[rows]) | ((before & _AGENT) >= self.clocks.copier)
        if any_lane(bad):
            old = before[bad]
            bad[bad] = (old >> AGENT_BITS) > self.clocks.seen[rows[bad], warps[bad], old & _AGENT]
        return bad

    def unordered_reads(self, index: Array, rows: Array, warps: Array) -> Array:
        """Whether the last read of some agent is unknown to the warp."""
        bad = self.latest[index] > self.clocks.base[rows]
        if any_lane(bad):
            row, warp = rows[bad], warps[bad]
            granule = index[bad] - row * self.size
            found = np.zeros(row.shape, np.bool_)
            for agent in range(self.clocks.copier):
                last = self.reads[(row * self.clocks.copier + agent) * self.size + granule]
                found |= last > self.clocks.seen[row, warp, agent]
            bad[bad] = found
        return bad


class Races(Observer):
    """Finds races in shared memory. `result()` is a tuple of `Race`."""

    name = "races"

    def begin(self, launch: Launch) -> None:
        self._granule = smallest_access(launch.kernel, "shared")
        self._found: dict[tuple[str, int], Race] = {}

    def attach(self, context: Context) -> None:
        size = context.shared.pitch // self._granule
        context.watched[self] = _State.create(context.block_count, context.thread_count, size)

    def split(self, context: Context, part: Context, rows: NDArray[np.int64]) -> None:
        part.watched[self] = context.watched[self].rows(rows)

    def result(self) -> tuple[Race, ...]:
        """The races, by instruction."""
        return tuple(self._found.values())

    # accesses of warps

    def read_shared(self, context: Context, instruction: Instruction, relative: Any, mask: Mask, size: int) -> None:
        state: _State = context.watched[self]
        index, rows, warps = self._places(state, context, relative, mask, size)
        self._report(context, instruction, "read after write", state.unordered_writes(index, rows, warps), index, state)
        self._report(context, instruction, UNWRITTEN, state.writes[index] == 0, index, state)
        time = state.clocks.time[rows]
        state.reads[(rows * state.clocks.copier + warps) * state.size + index - rows * state.size] = time
        state.latest[index] = time

    def write_shared(
        self, context: Context, instruction: Instruction, relative: Any, mask: Mask, size: int, values: list[Any]
    ) -> None:
        state: _State = context.watched[self]
        index, rows, warps = self._places(state, context, relative, mask, size)
        self._report(context, instruction, "write after read", state.unordered_reads(index, rows, warps), index, state)
        clash = state.unordered_writes(index, rows, warps)
        tags = (state.clocks.time[rows] << AGENT_BITS) | warps.astype(np.int32)
        state.writes[index] = tags
        together = state.writes[index] != tags
        if any_lane(clash) or any_lane(together):
            equal = self._equal(context, index, mask, values, together) if values else np.zeros(index.shape, np.bool_)
            either = clash | together
            self._report(context, instruction, EQUAL, either & equal, index, state)
            self._report(context, instruction, "write after write", either & ~equal, index, state)

    def _places(
        self, state: _State, context: Context, relative: Any, mask: Mask, size: int
    ) -> tuple[Array, Array, Array]:
        """Granules (indices in the tables), rows and warps of the accesses."""
        offsets, rows, threads = active_pairs(context, relative, mask)
        index, rows, warps = granules(offsets, size, self._granule, rows, threads >> 5)
        return index + rows * state.size, rows, warps

    def _equal(self, context: Context, index: Array, mask: Mask, values: list[Any], together: Array) -> Array:
        """Where a store does not change the value, and all lanes that store to it at once store the same value."""
        kind = np.dtype(f"u{self._granule}")
        wide = np.stack([context.full(value) for value in values], -1)
        chosen = wide.reshape(-1, len(values)) if mask is None else wide[context.full(mask)]
        written = np.ascontiguousarray(chosen).view(kind).reshape(-1)
        content = context.shared.bytes.reshape(-1).view(kind)
        before = content[index].copy()
        last = content.copy()
        last[index] = written
        return (last[index] == written) & (together | (before == written))

    # asynchronous accesses

    def issue_copy(self, context: Context, instruction: Instruction, relative: Any, mask: Mask, size: int) -> None:
        state: _State = context.watched[self]
        index, rows, warps = self._places(state, context, relative, mask, size)
        bad = state.unordered_reads(index, rows, warps)
        self._report(context, instruction, "copy after read", bad, index, state)
        bad = state.unordered_writes(index, rows, warps)
        self._report(context, instruction, "copy after write", bad, index, state)
        times = state.clocks.issue_copies(context, mask)
        state.writes[index] = (times[rows] << AGENT_BITS) | (warps + state.clocks.copier).astype(np.int32)

    def commit_copies(self, context: Context, instruction: Instruction, mask: Mask) -> None:
        clocks = context.watched[self].clocks
        clocks.commit(context, mask, clocks.copier, clocks.warps)

    def wait_copies(self, context: Context, instruction: Instruction, pending: int, mask: Mask) -> None:
        clocks = context.watched[self].clocks
        clocks.wait(context, mask, pending, clocks.copier, clocks.warps)

    def read_operand(
        self, context: Context, instruction: Instruction, rows: Any, groups: Any, tile: Any, size: int
    ) -> None:
        state: _State = context.watched[self]
        clocks = state.clocks
        places = np.unique(tile // self._granule)
        for row, group in zip(rows.tolist(), groups.tolist(), strict=True):
            self._check_tile(context, instruction, row, range(4 * group, 4 * group + 4), places, store=False)
            agent = clocks.warps + group
            time = clocks.stamp(row, agent)
            self._mark_read(state, row, agent, places, time)
            for warp in range(4 * group, 4 * group + 4):
                clocks.issue(row, warp, agent, time)

    def commit_operands(self, context: Context, instruction: Instruction, mask: Mask) -> None:
        clocks = context.watched[self].clocks
        clocks.commit(context, mask, clocks.warps, clocks.groups)

    def wait_operands(self, context: Context, instruction: Instruction, pending: int, mask: Mask) -> None:
        clocks = context.watched[self].clocks
        clocks.wait(context, mask, pending, clocks.warps, clocks.groups)

    def issue_tensor_load(
        self, context: Context, instruction: Instruction, row: int, thread: int, barrier: int, tile: Any, size: int
    ) -> None:
        state: _State = context.watched[self]
        clocks, warp = state.clocks, thread >> 5
        places = np.unique(tile // self._granule)
        self._check_tile(context, instruction, row, (warp,), places, store=True)
        known = clocks.published(row, warp)
        time = clocks.stamp(row, clocks.load_agent)
        known[clocks.load_agent] = time
        clocks.signal(row, barrier, known)
        state.writes[places + row * state.size] = (time << AGENT_BITS) | clocks.load_agent

    def issue_tensor_store(
        self, context: Context, instruction: Instruction, row: int, thread: int, tile: Any, size: int
    ) -> None:
        state: _State = context.watched[self]
        clocks, warp = state.clocks, thread >> 5
        places = np.unique(tile // self._granule)
        self._check_tile(context, instruction, row, (warp,), places, store=False)
        time = clocks.stamp(row, clocks.store_agent)
        self._mark_read(state, row, clocks.store_agent, places, time)
        clocks.issue(row, warp, clocks.store_agent, time)

    def commit_tensor_stores(self, context: Context, instruction: Instruction, mask: Mask) -> None:
        clocks = context.watched[self].clocks
        clocks.commit(context, mask, clocks.store_agent, 1)

    def wait_tensor_stores(self, context: Context, instruction: Instruction, pending: int, mask: Mask) -> None:
        clocks = context.watched[self].clocks
        clocks.wait(context, mask, pending, clocks.store_agent, 1)

    def _check_tile(
        self, context: Context, instruction: Instruction, row: int, warps: Any, places: Array, *, store: bool
    ) -> None:
        """Checks an asynchronous access issued by `warps`, each of which must know the earlier accesses."""
        state: _State = context.watched[self]
        index, rows = places + row * state.size, np.full(places.shape, row)
        what = "tile write" if store else "tile read"
        if not store:
            self._report(context, instruction, UNWRITTEN, state.writes[index] == 0, index, state)
        for warp in warps:
            issuer = np.full(places.shape, warp)
            bad = state.unordered_writes(index, rows, issuer)
            self._report(context, instruction, f"{what} after write", bad, index, state)
            if store:
                bad = state.unordered_reads(index, rows, issuer)
                self._report(context, instruction, f"{what} after read", bad, index, state)

    @staticmethod
    def _mark_read(state: _State, row: int, agent: int, places: Array, time: np.int32) -> None:
        state.reads[(row * state.clocks.copier + agent) * state.size + places] = time
        state.latest[places + row * state.size] = time

    # order

    def barrier(self, context: Context, lanes: Mask, instruction: Instruction) -> None:
        context.watched[self].clocks.barrier(context, lanes)

    def arrive(self, context: Context, instruction: Instruction, row: int, threads: Any, barrier: int) -> None:
        context.watched[self].clocks.arrive(row, threads, barrier)

    def end_phase(self, context: Context, row: int, barrier: int) -> None:
        context.watched[self].clocks.end_phase(row, barrier)

    def pass_phase(self, context: Context, instruction: Instruction, row: int, threads: Any, barrier: int) -> None:
        context.watched[self].clocks.pass_phase(row, threads, barrier)

    def _report(
        self, context: Context, instruction: Instruction, kind: str, bad: Array, index: Array, state: _State
    ) -> None:
        if not any_lane(bad):
            return
        key = kind, instruction.index
        race = self._found.get(key)
        if race is None:
            first = int(index[int(np.argmax(bad))])
            block, byte = int(context.blocks[first // state.size]), first % state.size * self._granule
            race = self._found[key] = Race(kind, place(context.launch.kernel, instruction), 0, block, byte)
        race.count += int(np.count_nonzero(bad))
