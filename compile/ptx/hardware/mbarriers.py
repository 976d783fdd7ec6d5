"""Barrier objects in shared memory (PTX ISA, "Parallel Synchronization": mbarrier).

A phase ends when no arrivals and no bytes of asynchronous copies are pending. The next phase then begins with the count
of the init. The state is not in shared memory, because its layout is opaque on hardware. The use of an object that was
not initialised raises `Fault`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bringup.compile.ptx.assembly.kernel import Instruction
from bringup.compile.ptx.hardware.spaces import SHARED_BASE
from bringup.compile.ptx.hardware.storage import Arriving

if TYPE_CHECKING:
    from bringup.compile.ptx.hardware.context import Context, Mask

Array = NDArray[Any]
_PHASE, _PENDING, _COUNT, _BYTES = range(4)


def active_lanes(context: Context, mask: Mask) -> tuple[Array, Array]:
    """The rows and threads of the active lanes."""
    rows, threads = np.nonzero(context.full(np.True_ if mask is None else mask))
    return rows, threads


def barrier_init(context: Context, address: Array, count: Array | int, mask: Mask, instruction: Instruction) -> None:
    """mbarrier.init: a phase ends after `count` arrivals."""
    _write(context, address, mask, instruction)
    rows, threads = active_lanes(context, mask)
    places, counts = context.full(address)[rows, threads], context.full(np.asarray(count))[rows, threads]
    for row, place, arrivals in zip(rows, places, counts, strict=True):
        context.mbarriers.state(int(place))[row] = (0, int(arrivals), int(arrivals), 0)


def barrier_invalidate(context: Context, address: Array, mask: Mask, instruction: Instruction) -> None:
    """mbarrier.inval: the memory can be used for other data."""
    _write(context, address, mask, instruction)
    rows, threads = active_lanes(context, mask)
    for row, place in zip(rows, context.full(address)[rows, threads], strict=True):
        context.mbarriers.state(int(place))[row] = 0


def _write(context: Context, address: Array, mask: Mask, instruction: Instruction) -> None:
    """Records a write of the object's 8 bytes, which must not be concurrent with another access."""
    relative = np.asarray(address).astype(np.int64) - np.int64(SHARED_BASE)
    for observer in context.launch.observers:
        observer.write_shared(context, instruction, relative, mask, 8, [])


def _read(context: Context, address: Array, mask: Mask, instruction: Instruction) -> None:
    """Records a read of the object, which its init must precede."""
    relative = np.asarray(address).astype(np.int64) - np.int64(SHARED_BASE)
    for observer in context.launch.observers:
        observer.read_shared(context, instruction, relative, mask, 8)


def barrier_arrive(
    context: Context,
    address: Array,
    count: Array | int,
    transactions: Array | int,
    mask: Mask,
    instruction: Instruction,
) -> None:
    """mbarrier.arrive; with .expect_tx, `transactions` bytes are added to the pending count first."""
    _change(context, address, count, transactions, mask, instruction)


def barrier_expect(
    context: Context, address: Array, transactions: Array | int, mask: Mask, instruction: Instruction
) -> None:
    """mbarrier.expect_tx: adds `transactions` bytes to the pending count of the phase."""
    _change(context, address, 0, transactions, mask, instruction)


def _change(
    context: Context,
    address: Array,
    count: Array | int,
    transactions: Array | int,
    mask: Mask,
    instruction: Instruction,
) -> None:
    _read(context, address, mask, instruction)
    rows, threads = active_lanes(context, mask)
    places = context.full(address)[rows, threads].astype(np.int64)
    counts, nbytes = (context.full(np.asarray(value))[rows, threads] for value in (count, transactions))
    for place in np.unique(places):
        state = context.mbarriers.state(int(place))
        for row in np.unique(rows[places == place]):
            here = (places == place) & (rows == row)
            if not state[row, _COUNT]:
                context.fault(
                    instruction, f"the barrier object at shared address {place} was not initialised", _one(context, row)
                )
            arrivals = int(counts[here].sum())
            if arrivals > state[row, _PENDING]:
                expected = f"which expects {state[row, _PENDING]}"
                message = f"{arrivals} arrivals at the barrier object at shared address {place}, {expected}"
                context.fault(instruction, message, _one(context, row))
            if arrivals:
                for observer in context.launch.observers:
                    observer.arrive(context, instruction, int(row), threads[here], int(place))
            state[row, _BYTES] += int(nbytes[here].sum())
            state[row, _PENDING] -= arrivals
            end_phase_if_complete(context, int(row), int(place))


def _one(context: Context, row: int) -> Array:
    return context.full((np.arange(context.block_count) == row)[:, None])


def end_phase_if_complete(context: Context, row: int, address: int) -> None:
    """Begins the next phase if nothing of this one is pending."""
    state = context.mbarriers.state(address)
    if state[row, _PENDING] == 0 and state[row, _BYTES] == 0 and state[row, _COUNT]:
        state[row, _PHASE] ^= 1
        state[row, _PENDING] = state[row, _COUNT]
        for observer in context.launch.observers:
            observer.end_phase(context, row, address)


def complete_bytes(context: Context, row: int, address: int, nbytes: int) -> None:
    """complete_tx: an asynchronous copy has written `nbytes` bytes."""
    context.mbarriers.state(address)[row, _BYTES] -= nbytes
    end_phase_if_complete(context, row, address)


def barrier_test(context: Context, address: Array, parity: Array, mask: Mask, instruction: Instruction) -> Array:
    """mbarrier.try_wait.parity and test_wait.parity: whether the phase with this parity has ended.

    Pending copies are performed now, the latest moment that hardware may choose.
    """
    _read(context, address, mask, instruction)
    active = context.full(np.True_ if mask is None else mask)
    places, parities = context.full(np.asarray(address).astype(np.int64)), context.full(np.asarray(parity)) & 1
    result = np.zeros((context.block_count, context.thread_count), np.bool_)
    for place in np.unique(places[active]):
        here = active & (places == place)
        _finish(context, int(place), here)
        state = context.mbarriers.state(int(place))
        unset = here & (state[:, _COUNT] == 0)[:, None]
        if unset.any():
            context.fault(
                instruction, f"wait at the barrier object at shared address {place}, which was not initialised", unset
            )
        ended = here & ((state[:, _PHASE] & 1)[:, None] != parities)
        result |= ended
        for row in np.flatnonzero(ended.any(1)) if context.launch.observers else ():
            for observer in context.launch.observers:
                observer.pass_phase(context, instruction, int(row), np.flatnonzero(ended[row]), int(place))
    return result


def _finish(context: Context, address: int, lanes: Array) -> None:
    """Performs the pending copies of the barrier object at `address`, in the blocks of the waiting lanes."""
    queue = context.mbarriers.arriving.get(address)
    if not queue:
        return
    waiting: Array = np.logical_or.reduce(lanes, axis=1)
    context.mbarriers.arriving[address] = [copy for copy in queue if not waiting[copy.row]]
    for copy in queue:
        if waiting[copy.row]:
            arrive_tile(context, copy, address)


def arrive_tile(context: Context, copy: Arriving, barrier: int) -> None:
    """Copies the elements of a tensor load to shared memory, and completes its bytes at the barrier object."""
    memory = context.device.vectors(copy.width, copy.width)
    values = np.full(copy.source.shape, copy.fill, memory.dtype)
    values[copy.inside] = memory[copy.source[copy.inside] // copy.width]
    shared = context.shared.vectors(copy.width, copy.width)
    shared[(copy.destination + context.shared.origins[copy.row]) // copy.width] = values
    complete_bytes(context, copy.row, barrier, copy.nbytes)
