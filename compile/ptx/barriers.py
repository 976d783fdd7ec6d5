"""Barriers of a thread block (PTX ISA, `bar`, `barrier`): which lanes wait at which barrier, and when they continue."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bringup.compile.ptx.hardware.context import Context
from bringup.compile.ptx.hardware.values import any_lane
from bringup.compile.ptx.translate.outcomes import Waiting


def add_work(context: Context, block: int, lanes: NDArray[np.bool_] | None) -> None:
    """Adds lanes (None: all) to those that are at the start of a basic block."""
    if block in context.work:
        present = context.work[block]
        lanes = None if present is None or lanes is None else present | lanes
    context.work[block] = lanes


def open_barriers(context: Context) -> bool:
    """Releases the lanes at each barrier that is complete in their thread block. Returns whether any was complete.

    A barrier is complete when its count of threads, or every thread of the block that has not returned, waits there.
    """
    waiting: list[Waiting] = context.waiting
    context.waiting = []
    opened = False
    for identity in sorted({each.identity for each in waiting}):
        group = [each for each in waiting if each.identity == identity]
        complete = _complete(context, group)
        if not any_lane(complete):
            context.waiting += group
            continue
        opened = True
        rows = complete[:, None]
        released = np.zeros((context.block_count, context.thread_count), bool)
        for each in group:
            assert each.lanes is not None
            leaving, staying = each.lanes & rows, each.lanes & ~rows
            released |= leaving
            if any_lane(leaving):
                add_work(context, each.after, leaving)
            if any_lane(staying):
                context.waiting.append(Waiting(identity, each.count, staying, None, each.after, each.instruction))
        for observer in context.launch.observers:
            observer.barrier(context, released, group[0].instruction)
    return opened


def _complete(context: Context, group: list[Waiting]) -> NDArray[np.bool_]:
    """The thread blocks (B,) in which all expected threads wait."""
    present = context.full(True if group[0].lanes is None else group[0].lanes)
    for each in group[1:]:
        present = present | context.full(True if each.lanes is None else each.lanes)
    if group[0].count:
        return np.asarray(present.sum(1) == group[0].count)
    if context.alive is None:
        return np.logical_and.reduce(present, axis=1)
    expected = context.full(context.alive)
    return np.asarray(~(expected & ~present).any(1) & present.any(1))
