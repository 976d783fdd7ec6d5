"""Runs contexts until their lanes have returned: selects the next basic block, and follows branches."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from bringup.compile.ptx.assembly.flow import BasicBlock
from bringup.compile.ptx.barriers import add_work, open_barriers
from bringup.compile.ptx.hardware.context import Context, Launch, Mask
from bringup.compile.ptx.hardware.values import all_lanes, any_lane
from bringup.compile.ptx.translate.outcomes import END, Diverged, Divided, Outcome
from bringup.compile.ptx.translate.translator import BlockFunction

SLICE = 4000
"""The number of basic blocks that a context runs before the next context runs."""

SPINS = 1000
"""A launch is treated as a deadlock after so many consecutive spinning basic blocks for each context that has started.

Each context runs in turn, so by then all of them spin, and none has anything else to do that would end it.
"""


class Runner:
    """`visits` counts the lanes that ran each basic block. A context that waits for others is run again after these."""

    def __init__(
        self, launch: Launch, blocks: list[BasicBlock], functions: list[BlockFunction], max_steps: int
    ) -> None:
        self.launch, self.blocks, self.functions, self.max_steps = launch, blocks, functions, max_steps
        self.visits = [0] * len(blocks)
        self.divided: deque[Context] = deque()
        self._progress = 0

    def run_grid(self, lanes: int) -> None:
        """Runs all thread blocks. As many of them run in lockstep as have `lanes` threads."""
        x, y, z = self.launch.grid
        count, together = x * y * z, max(1, lanes // self.launch.kernel.threads)
        order = np.arange(count) if self.launch.random is None else self.launch.random.permutation(count)
        starts = deque(range(0, count, together))
        others_first = False
        while starts or self.divided:
            if self.divided and not (starts and others_first):
                context = self.divided.popleft()
            else:
                start = starts.popleft()
                context = Context(self.launch, order[start : start + together].astype(np.int64))
                others_first = False
            if not self._run(context):
                self.divided.append(context)
                others_first = True

    def _run(self, context: Context) -> bool:
        """Whether all lanes have returned or moved to other contexts. False if its slice ended or all lanes spin."""
        for _ in range(SLICE):
            if not context.work:
                if not context.waiting:
                    return True
                self._open(context)
                continue
            block = self._next(context)
            if block is None:
                return False
            mask = self._in_turn(context, block, context.work.pop(block))
            if mask is not None and not context.work and not context.waiting:
                mask = None if context.alive is None and all_lanes(mask) else mask
            lanes = context.block_count * context.thread_count if mask is None else int(np.count_nonzero(mask))
            self.visits[block] += lanes
            outcome = self.functions[block](context, context.registers, mask)
            self._count(context, block)
            if self._follow(context, mask, outcome):
                return True
        return False

    def _next(self, context: Context) -> int | None:
        """The first basic block with lanes. Each block that spins runs once; then None, so that other contexts run."""
        work, spinning = context.work, context.yielded
        if not spinning:
            return self._first(context, work)
        ready = [block for block in work if block not in spinning]
        if ready:
            return self._first(context, ready)
        spinning.clear()
        return None

    def _first(self, context: Context, blocks: Iterable[int]) -> int:
        """The first of the basic blocks. If warps take turns, the first one with lanes of the warp that is next."""
        turn = self.launch.turn
        if turn is None:
            return min(blocks)
        every = context.full(turn)
        lanes = {block: context.work[block] for block in blocks}
        return min(lanes, key=lambda at: (int((every if lanes[at] is None else every[lanes[at]]).min()), at))

    def _in_turn(self, context: Context, block: int, mask: Mask) -> Mask:
        """Of the lanes at a basic block, those of the warp whose turn it is. The others stay at the block."""
        if self.launch.turn is None:
            return mask
        lanes, turn = context.full(True if mask is None else mask), context.full(self.launch.turn)
        now = lanes & (turn == turn[lanes].min())
        if any_lane(lanes & ~now):
            context.work[block] = lanes & ~now
        return now

    def _count(self, context: Context, block: int) -> None:
        self.launch.steps += 1
        if self.blocks[block].spins:
            context.yielded.add(block)
        else:
            self._progress = self.launch.steps
        spins = self.launch.steps - self._progress
        if self.launch.steps > self.max_steps or spins > SPINS * (1 + len(self.divided)):
            instruction = self.launch.kernel.instructions[self.blocks[block].start]
            context.fault(instruction, f"no end after {self.launch.steps} basic blocks: a deadlock")

    def _follow(self, context: Context, mask: Mask, outcome: Outcome) -> bool:
        """Records where the lanes are after a basic block. Returns whether the context was divided."""
        if isinstance(outcome, int):
            self._arrive(context, outcome, mask)
        elif isinstance(outcome, Diverged):
            for block, lanes in outcome.parts:
                self._arrive(context, block, lanes)
        elif isinstance(outcome, Divided):
            self._divide(context, outcome.rows, outcome.taken, outcome.other)
            return True
        else:
            if outcome.passing is not None and any_lane(outcome.passing):
                add_work(context, outcome.after, outcome.passing)
            if outcome.lanes is None:
                add_work(context, outcome.after, None)
                for observer in self.launch.observers:
                    observer.barrier(context, None, outcome.instruction)
            elif any_lane(outcome.lanes):
                context.waiting.append(outcome)
                open_barriers(context)
        return False

    def _arrive(self, context: Context, block: int, lanes: Mask) -> None:
        if block != END:
            return add_work(context, block, lanes)
        if lanes is None and not context.work and not context.waiting:
            return None
        returned = context.full(True if lanes is None else lanes)
        context.alive = (context.full(True) if context.alive is None else context.alive) & ~returned
        return None

    def _divide(self, context: Context, rows: NDArray[np.bool_], taken: int, other: int) -> None:
        """Divides a context in two if its thread blocks branch differently. Blocks that fall through run first."""
        for chosen, block, put in ((rows, taken, self.divided.append), (~rows, other, self.divided.appendleft)):
            if block != END:
                part = context.rows(np.flatnonzero(chosen))
                part.work = {block: None}
                put(part)

    def _open(self, context: Context) -> None:
        """Opens a barrier when all lanes wait at barriers. Raises `Fault` if none is complete: a deadlock."""
        if not open_barriers(context):
            first = context.waiting[0]
            message = f"barrier {first.identity} is never reached by all threads of the block: a deadlock"
            context.fault(first.instruction, message, first.lanes)
