"""Tensor copies between global and shared memory, and tensor maps that a kernel writes (PTX ISA, "Data Movement":
cp.async.bulk.tensor, tensormap.replace, tensormap.cp_fenceproxy).

Few lanes issue them (one per block), so they are processed one by one. A load is performed when its barrier object is
waited for, or at once with copies="earliest". A store is performed at once; observers model that it reads shared
memory until its group is waited for. Tiles and tensor maps that are out of bounds or misaligned, and tensor maps that
are invalid or not supported, raise `Fault`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bringup.compile.ptx.assembly.kernel import Instruction
from bringup.compile.ptx.hardware.fragments import swizzled
from bringup.compile.ptx.hardware.mbarriers import active_lanes, arrive_tile
from bringup.compile.ptx.hardware.spaces import GLOBAL_BASE, SHARED_BASE
from bringup.compile.ptx.hardware.storage import Arriving
from bringup.compile.ptx.hardware.tensormap import TENSOR_MAP_BYTES, TensorMap, write

if TYPE_CHECKING:
    from bringup.compile.ptx.hardware.context import Context, Mask

Array = NDArray[Any]
TILE_ALIGNMENT = 128  # bytes, of a tile in shared memory (PTX ISA, `cp.async.bulk.tensor`)


def tensor_load(
    context: Context,
    destination: Array,
    descriptor: Array,
    coordinates: list[Array],
    barrier: Array,
    mask: Mask,
    instruction: Instruction,
) -> None:
    """cp.async.bulk.tensor from global to shared memory; its bytes are counted by the barrier object `barrier`."""
    for row, thread, (place, tensor, signal, *corner) in _lanes(
        context, mask, destination, descriptor, barrier, *coordinates
    ):
        copy = _tile(context, row, tensor, corner, place, instruction)
        for observer in context.launch.observers:
            observer.issue_tensor_load(context, instruction, row, thread, signal, copy.destination, copy.width)
            observer.move_tile(context, instruction, row, thread, copy.source[copy.inside], copy.width, store=False)
        if context.launch.copies == "earliest":
            arrive_tile(context, copy, signal)
        else:
            context.mbarriers.arriving.setdefault(signal, []).append(copy)


def tensor_store(
    context: Context, source: Array, descriptor: Array, coordinates: list[Array], mask: Mask, instruction: Instruction
) -> None:
    """cp.async.bulk.tensor from shared to global memory; elements outside the tensor are not written."""
    for row, thread, (place, tensor, *corner) in _lanes(context, mask, source, descriptor, *coordinates):
        copy = _tile(context, row, tensor, corner, place, instruction)
        for observer in context.launch.observers:
            observer.issue_tensor_store(context, instruction, row, thread, copy.destination, copy.width)
            observer.move_tile(context, instruction, row, thread, copy.source[copy.inside], copy.width, store=True)
        shared = context.shared.vectors(copy.width, copy.width)
        values = shared[(copy.destination + context.shared.origins[row]) // copy.width]
        context.device.vectors(copy.width, copy.width)[copy.source[copy.inside] // copy.width] = values[copy.inside]


def tensor_commit(context: Context, mask: Mask, instruction: Instruction) -> None:
    """cp.async.bulk.commit_group."""
    for observer in context.launch.observers:
        observer.commit_tensor_stores(context, instruction, mask)


def tensor_wait(context: Context, pending: int, mask: Mask, instruction: Instruction) -> None:
    """cp.async.bulk.wait_group, with or without .read."""
    for observer in context.launch.observers:
        observer.wait_tensor_stores(context, instruction, pending, mask)


def tensormap_replace(
    context: Context,
    field: str,
    address: Array,
    offset: int,
    ordinal: int,
    value: Array,
    mask: Mask,
    instruction: Instruction,
) -> None:
    """tensormap.replace: sets a field of a tensor map in shared memory. `ordinal` is the dimension."""
    for row, _, (place, number) in _lanes(context, mask, address, np.asarray(value).astype(np.int64)):
        begin = place + offset - SHARED_BASE
        _check_map(context, begin, instruction)
        write(context.shared.bytes[row, begin : begin + TENSOR_MAP_BYTES], field, ordinal, number)


def tensormap_publish(
    context: Context,
    destination: Array,
    destination_offset: int,
    source: Array,
    source_offset: int,
    mask: Mask,
    instruction: Instruction,
) -> None:
    """tensormap.cp_fenceproxy: copies a tensor map from shared to global memory, where tensor copies read it."""
    lead: set[tuple[int, int]] = set()
    for row, thread, (place, origin) in _lanes(context, mask, destination, source):
        target, begin = place + destination_offset - GLOBAL_BASE, origin + source_offset - SHARED_BASE
        if (row, target) in lead:
            continue
        lead.add((row, target))
        _check_map(context, begin, instruction)
        _check_place(context, target, instruction, "tensor map store")
        for observer in context.launch.observers:
            observer.store_map(context, instruction, row, thread, target)
        context.device.bytes[target : target + TENSOR_MAP_BYTES] = context.shared.bytes[
            row, begin : begin + TENSOR_MAP_BYTES
        ]


def _lanes(context: Context, mask: Mask, *values: Array) -> list[tuple[int, int, list[int]]]:
    """(row, thread, values) of each active lane."""
    rows, threads = active_lanes(context, mask)
    columns = [context.full(np.asarray(value))[rows, threads] for value in values]
    return [
        (int(row), int(thread), [int(column[lane]) for column in columns])
        for lane, (row, thread) in enumerate(zip(rows, threads, strict=True))
    ]


def _check_map(context: Context, begin: int, instruction: Instruction) -> None:
    if begin < 0 or begin + TENSOR_MAP_BYTES > context.shared.nbytes:
        context.fault(
            instruction, f"tensor map at shared memory + {begin} (of {context.shared.nbytes} bytes): out of bounds"
        )


def _check_place(context: Context, offset: int, instruction: Instruction, action: str) -> None:
    if (
        context.device.invalid(np.asarray([offset]), 1)[0]
        or context.device.invalid(np.asarray([offset + TENSOR_MAP_BYTES - 1]), 1)[0]
    ):
        context.fault(instruction, f"out of bounds {action} of 128 bytes at {context.device.describe(offset)}")
    if offset % 64:
        context.fault(
            instruction,
            f"misaligned {action} at {context.device.describe(offset)}: a tensor map is aligned to 64 bytes",
        )


def _tile(
    context: Context, row: int, address: int, corner: list[int], place: int, instruction: Instruction
) -> Arriving:
    """The elements of a box of a tensor: offsets in device and shared memory, and whether each is in the tensor."""
    tensor = _tensor_map(context, address, instruction)
    offsets, inside = np.zeros(1, np.int64), np.ones(1, np.bool_)
    for first, extent, dim, stride in zip(
        corner, tensor.box, tensor.dims, (tensor.width, *tensor.strides), strict=True
    ):
        index = first + np.arange(extent, dtype=np.int64)
        offsets = ((index * stride)[:, None] + offsets).reshape(-1)
        inside = (((index >= 0) & (index < dim))[:, None] & inside).reshape(-1)
    offsets += tensor.address - GLOBAL_BASE
    shared = swizzled(place + np.arange(offsets.size, dtype=np.int64) * tensor.width, tensor.swizzle) - SHARED_BASE
    if place % TILE_ALIGNMENT:
        context.fault(
            instruction, f"a tile at shared address {place}: tensor copies need {TILE_ALIGNMENT}-byte alignment"
        )
    if shared.min() < 0 or shared.max() + tensor.width > context.shared.nbytes:
        last = int(shared.max()) + tensor.width - 1
        context.fault(
            instruction,
            f"a tile at bytes {int(shared.min())} to {last} of {context.shared.nbytes} bytes of shared memory",
        )
    if inside.any() and not context.device.accepts(offsets[inside], tensor.width):
        bad = offsets[inside][context.device.invalid(offsets[inside], tensor.width)]
        if bad.size:
            context.fault(
                instruction, f"out of bounds tensor copy at {context.device.describe(int(bad[0]))}; {bad.size} elements"
            )
    fill = (1 << 8 * tensor.width) - 1 if tensor.fill_nan else 0
    return Arriving(row, offsets, shared, inside, tensor.width, fill)


def _tensor_map(context: Context, address: int, instruction: Instruction) -> TensorMap:
    begin = address - GLOBAL_BASE
    _check_place(context, begin, instruction, "tensor map load")
    try:
        tensor = TensorMap.decode(context.device.bytes[begin : begin + TENSOR_MAP_BYTES])
    except ValueError as error:
        context.fault(instruction, f"tensor copy with the descriptor at {context.device.describe(begin)}: {error}")
    if tensor.interleave or any(stride != 1 for stride in tensor.element_strides):
        context.fault(instruction, "a tensor map with interleaving or element strides: the emulator has neither")
    if any(stride % 16 for stride in tensor.strides):
        context.fault(instruction, f"a tensor map with strides {tensor.strides}: each must be a multiple of 16 bytes")
    return tensor
