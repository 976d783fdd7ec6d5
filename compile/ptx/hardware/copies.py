"""Asynchronous copies of 4, 8 or 16 bytes per lane from global to shared memory (PTX ISA, "Data Movement": cp.async).

A copy is performed when its group is waited for, the latest moment that hardware may choose, or at once with
copies="earliest". A kernel is correct only if both give the same result. Groups are counted per thread.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bringup.compile.ptx.assembly.kernel import Instruction
from bringup.compile.ptx.hardware.mbarriers import barrier_arrive as barrier_arrive
from bringup.compile.ptx.hardware.mbarriers import barrier_expect as barrier_expect
from bringup.compile.ptx.hardware.mbarriers import barrier_init as barrier_init
from bringup.compile.ptx.hardware.mbarriers import barrier_invalidate as barrier_invalidate
from bringup.compile.ptx.hardware.mbarriers import barrier_test as barrier_test
from bringup.compile.ptx.hardware.memory import load_global, store_shared
from bringup.compile.ptx.hardware.spaces import SHARED_BASE
from bringup.compile.ptx.hardware.storage import Barriers as Barriers
from bringup.compile.ptx.hardware.storage import Copy, Group
from bringup.compile.ptx.hardware.storage import Pending as Pending
from bringup.compile.ptx.hardware.tensors import tensor_commit as tensor_commit
from bringup.compile.ptx.hardware.tensors import tensor_load as tensor_load
from bringup.compile.ptx.hardware.tensors import tensor_store as tensor_store
from bringup.compile.ptx.hardware.tensors import tensor_wait as tensor_wait
from bringup.compile.ptx.hardware.tensors import tensormap_publish as tensormap_publish
from bringup.compile.ptx.hardware.tensors import tensormap_replace as tensormap_replace

if TYPE_CHECKING:
    from bringup.compile.ptx.hardware.context import Context, Mask

Array = NDArray[Any]


def copy_async(
    context: Context,
    destination: Array,
    source: Array,
    size: int,
    source_size: Array | None,
    mask: Mask,
    instruction: Instruction,
) -> None:
    """cp.async.ca or .cg. Bytes from `source_size` are set to zero.

    A `source_size` other than 0 and `size` raises `Fault`: the emulator does not support it.
    """
    known = source_size is None or (np.ndim(source_size) == 0 and int(source_size) == size)
    short = None if known else np.asarray(source_size)
    copy = Copy(np.asarray(destination), np.asarray(source), size, short, mask, instruction)
    if context.launch.copies == "earliest":
        _perform(context, copy, mask)
    else:
        context.pending.open.append(copy)
    relative = copy.destination.astype(np.int64) - np.int64(SHARED_BASE)
    for observer in context.launch.observers:
        observer.issue_copy(context, instruction, relative, mask, size)


def commit_copies(context: Context, mask: Mask, instruction: Instruction) -> None:
    """cp.async.commit_group: the uncommitted copies of the active lanes become a group."""
    for observer in context.launch.observers:
        observer.commit_copies(context, instruction, mask)
    pending = context.pending
    if mask is None:
        number = pending.committed = pending.committed + 1
        pending.groups.append(Group(tuple(pending.open), number, None))
        pending.open = []
        return
    lanes = context.full(mask)
    number = context.full(np.asarray(pending.committed)) + lanes
    pending.committed = number
    pending.groups.append(Group(tuple(_restricted(context, copy, lanes) for copy in pending.open), number, lanes))
    pending.open = _rest(context, pending.open, lanes)


def wait_copies(context: Context, pending: int | None, mask: Mask, instruction: Instruction) -> None:
    """cp.async.wait_group: waits for all groups but the last `pending`. None: wait_all, with uncommitted copies."""
    if pending is None:
        commit_copies(context, mask, instruction)
    for observer in context.launch.observers:
        observer.wait_copies(context, instruction, pending or 0, mask)
    limit = context.pending.committed - (pending or 0)
    left: list[Group] = []
    for group in context.pending.groups:
        due = group.number <= limit
        if mask is None and np.all(due):
            for copy in group.copies:
                _perform(context, copy, copy.mask)
            continue
        lanes = context.full(np.asarray(due if mask is None else due & mask))
        for copy in group.copies:
            _perform(context, copy, lanes if copy.mask is None else lanes & copy.mask)
        rest = tuple(_rest(context, list(group.copies), lanes))
        if rest:
            left.append(replace(group, copies=rest))
    context.pending.groups = left


def copies_arrive(context: Context, address: Array, increment: bool, mask: Mask, instruction: Instruction) -> None:
    """cp.async.mbarrier.arrive: arrives when all earlier copies of the lane have completed, which is now.

    Without .noinc (`increment`), the pending count is incremented first, so the arrival does not change it.
    """
    for observer in context.launch.observers:
        observer.commit_copies(context, instruction, mask)
        observer.wait_copies(context, instruction, 0, mask)
    lanes = context.full(np.True_ if mask is None else mask)
    for group in context.pending.groups:
        for copy in group.copies:
            _perform(context, copy, lanes if copy.mask is None else lanes & copy.mask)
    for copy in context.pending.open:
        _perform(context, copy, lanes if copy.mask is None else lanes & copy.mask)
    context.pending.groups = [
        replace(group, copies=tuple(_rest(context, list(group.copies), lanes))) for group in context.pending.groups
    ]
    context.pending.open = _rest(context, context.pending.open, lanes)
    if not increment:
        barrier_arrive(context, address, 1, 0, mask, instruction)


def fence(context: Context, mask: Mask, instruction: Instruction) -> None:
    """fence.* and membar.*: no effect, because memory operations are performed in order here."""
    for observer in context.launch.observers:
        observer.fence(context, instruction, mask)


def wait_for_launches(context: Context, mask: Mask, instruction: Instruction) -> None:
    """griddepcontrol.wait: no effect, because launches run in order here."""
    for observer in context.launch.observers:
        observer.wait_for_launches(context, instruction, mask)


def _restricted(context: Context, copy: Copy, lanes: Array) -> Copy:
    return replace(copy, mask=lanes if copy.mask is None else lanes & copy.mask)


def _rest(context: Context, copies: list[Copy], lanes: Array) -> list[Copy]:
    """The copies restricted to the other lanes; copies without lanes are removed."""
    others = (replace(copy, mask=~lanes if copy.mask is None else copy.mask & ~lanes) for copy in copies)
    return [copy for copy in others if copy.mask is not None and copy.mask.any()]


def _perform(context: Context, copy: Copy, mask: Mask) -> None:
    width = min(copy.size, 4)
    if copy.source_size is None:
        values = load_global(context, copy.source, 0, width, copy.size // width, mask, copy.instruction)
    else:
        full = copy.source_size >= copy.size
        if not np.all(full | (copy.source_size == 0)):
            context.fault(copy.instruction, "cp.async of a part of its bytes: the emulator has all or none")
        reading = full if mask is None else full & mask
        loaded = load_global(context, copy.source, 0, width, copy.size // width, reading, copy.instruction)
        values = [np.where(full, value, value.dtype.type(0)) for value in loaded]
    store_shared(context, copy.destination, 0, width, values, mask, copy.instruction)
