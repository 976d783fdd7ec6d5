"""Loads and stores of global, shared and local memory (PTX ISA, "Data Movement and Conversion Instructions": ld, st).

Every access is checked: all of its bytes must be in one live allocation, and its address a multiple of its size. An
invalid access raises `Fault`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bringup.compile.ptx.assembly.kernel import Instruction
from bringup.compile.ptx.hardware.device import UNSIGNED
from bringup.compile.ptx.hardware.spaces import GLOBAL_BASE, LOCAL_BASE, SHARED_BASE
from bringup.compile.ptx.hardware.storage import LocalMemory as LocalMemory
from bringup.compile.ptx.hardware.storage import SharedMemory as SharedMemory
from bringup.compile.ptx.hardware.values import all_lanes

if TYPE_CHECKING:
    from bringup.compile.ptx.hardware.context import Context, Mask

Array = NDArray[Any]
SHIFT = {size: np.int64(size.bit_length() - 1) for size in (1, 2, 4, 8, 16, 32)}


def load_global(
    context: Context, address: Array, offset: int, width: int, count: int, mask: Mask, instruction: Instruction
) -> list[Array]:
    """Loads `count` elements of `width` bytes from each address, as unsigned integers."""
    size = width * count
    index, mask, selected = _selected(address, offset - GLOBAL_BASE, mask)
    if not selected.size:
        return _nothing(width, count)
    check_global(context, index, mask, selected, size, instruction, "load")
    for observer in context.launch.observers:
        observer.read_global(context, instruction, index, mask, size)
    if mask is not None:
        index = np.where(mask, index, selected[0])
    return _elements(context.device.vectors(size, width), index >> SHIFT[size], count)


def store_global(
    context: Context, address: Array, offset: int, width: int, values: list[Array], mask: Mask, instruction: Instruction
) -> None:
    """Stores the values, of `width` bytes each, at each address. If lanes have the same address, the last lane wins."""
    size = width * len(values)
    index, mask, selected = _selected(address, offset - GLOBAL_BASE, mask)
    if not selected.size:
        return
    check_global(context, index, mask, selected, size, instruction, "store")
    for observer in context.launch.observers:
        observer.write_global(context, instruction, index, mask, size, values)
    places, content = _pairs(index, values, mask)
    context.device.vectors(size, width)[places >> SHIFT[size]] = content


def load_shared(
    context: Context, address: Array, offset: int, width: int, count: int, mask: Mask, instruction: Instruction
) -> list[Array]:
    """Loads `count` elements of `width` bytes from each address of the block's shared memory, as unsigned integers."""
    size = width * count
    relative, mask, selected = _selected(address, offset - SHARED_BASE, mask)
    if not selected.size:
        return _nothing(width, count)
    check_shared(context, relative, mask, selected, size, instruction, "load")
    for observer in context.launch.observers:
        observer.read_shared(context, instruction, relative, mask, size)
    if mask is not None:
        relative = np.where(mask, relative, selected[0])
    shared = context.shared
    return _elements(shared.vectors(size, width), (relative + shared.origins) >> SHIFT[size], count)


def store_shared(
    context: Context, address: Array, offset: int, width: int, values: list[Array], mask: Mask, instruction: Instruction
) -> None:
    """Stores the values, of `width` bytes each, at each address of the block's shared memory."""
    size = width * len(values)
    relative, mask, selected = _selected(address, offset - SHARED_BASE, mask)
    if not selected.size:
        return
    check_shared(context, relative, mask, selected, size, instruction, "store")
    for observer in context.launch.observers:
        observer.write_shared(context, instruction, relative, mask, size, values)
    shared = context.shared
    places, content = _pairs(relative + shared.origins, values, mask)
    shared.vectors(size, width)[places >> SHIFT[size]] = content


def load_local(
    context: Context, address: Array, offset: int, width: int, count: int, mask: Mask, instruction: Instruction
) -> list[Array]:
    """Loads `count` elements of `width` bytes from each address of the thread's local memory, as unsigned integers."""
    places, active = _local_places(context, address, offset, width * count, mask, instruction, "load")
    flat = context.local.flat(width)
    results: list[Array] = []
    for position in range(count):
        result = np.zeros(active.shape, UNSIGNED[width])
        result[active] = flat[(places >> SHIFT[width]) + position]
        results.append(result)
    return results


def store_local(
    context: Context, address: Array, offset: int, width: int, values: list[Array], mask: Mask, instruction: Instruction
) -> None:
    """Stores the values, of `width` bytes each, at each address of the thread's local memory."""
    places, active = _local_places(context, address, offset, width * len(values), mask, instruction, "store")
    flat = context.local.flat(width)
    for position, value in enumerate(values):
        flat[(places >> SHIFT[width]) + position] = context.full(value)[active]


def check_global(
    context: Context, index: Array, mask: Mask, selected: Array, size: int, instruction: Instruction, action: str
) -> None:
    """Raises Fault unless every selected access is aligned and within one live allocation."""
    device = context.device
    if device.accepts(selected, size):
        return
    bad = device.invalid(context.full(index), size)
    if mask is not None:
        bad = bad & context.full(mask)
    if bad.any():
        first = int(context.full(index)[bad][0])
        kind = "misaligned" if first % size and not _outside(context, first, size) else "out of bounds"
        place = device.describe(first)
        if (other := device.overflowed(first)) is not None:
            place += f", or at {other} if an integer of 32 bits overflowed"
        context.fault(instruction, f"{kind} {action} of {size} bytes at {place}; {int(bad.sum())} lanes", bad)


def _outside(context: Context, offset: int, size: int) -> bool:
    return bool(context.device.invalid(np.asarray([offset // size * size]), size)[0])


def check_shared(
    context: Context, relative: Array, mask: Mask, selected: Array, size: int, instruction: Instruction, action: str
) -> None:
    """Raises Fault unless every selected access is aligned and within the block's shared memory."""
    flat = selected.reshape(-1)
    inside = int(np.maximum.reduce(flat.view(np.uint64))) <= context.shared.nbytes - size  # a negative offset is large
    if inside and (size == 1 or not int(np.bitwise_or.reduce(flat)) & (size - 1)):
        return
    full = context.full(relative)
    outside = (full < 0) | (full + size > context.shared.nbytes)
    bad = outside | (full % size != 0)
    if mask is not None:
        bad = bad & context.full(mask)
    first = int(full[bad][0])
    kind = "out of bounds" if bool((outside & bad).any()) else "misaligned"
    message = f"{kind} {action} of {size} bytes at shared memory + {first} (of {context.shared.nbytes} bytes)"
    context.fault(instruction, f"{message}; {int(bad.sum())} lanes", bad)


def _selected(address: Array, offset: int, mask: Mask) -> tuple[Array, Mask, Array]:
    """Byte offsets, the mask (None if all lanes are active), and the offsets of the active lanes."""
    index = np.asarray(address).astype(np.int64) + np.int64(offset)
    if mask is None or all_lanes(mask):
        return index, None, index
    if index.shape == mask.shape:
        return index, mask, index[mask]
    places, active = np.broadcast_arrays(index, mask)
    return index, mask, places[active]


def _nothing(width: int, count: int) -> list[Array]:
    return [np.zeros((1, 1), UNSIGNED[width])] * count


def _elements(rows: Array, index: Array, count: int) -> list[Array]:
    if count == 1:
        return [rows.take(index)]
    taken = rows.take(index, axis=0)
    return [taken[..., position] for position in range(count)]


def _pairs(index: Array, values: list[Array], mask: Mask) -> tuple[Array, Array]:
    """The indices and the values of a store, one entry per active lane (or per distinct index)."""
    parts = [index, *values] if mask is None else [index, *values, mask]
    shapes = {np.shape(part) for part in parts}
    if len(shapes) > 1:
        shape = np.broadcast_shapes(*shapes)
        parts = [part if np.shape(part) == shape else np.broadcast_to(part, shape) for part in parts]
    if mask is not None:
        active = parts.pop()
        parts = [part[active] for part in parts]
    places, *content = parts
    return places, content[0] if len(content) == 1 else np.stack(content, -1)


def _local_places(
    context: Context, address: Array, offset: int, size: int, mask: Mask, instruction: Instruction, action: str
) -> tuple[Array, Array]:
    relative = context.full(np.asarray(address).astype(np.int64) + np.int64(offset - LOCAL_BASE))
    active = context.full(np.True_ if mask is None else mask)
    bad = active & ((relative < 0) | (relative + size > context.local.nbytes) | (relative % size != 0))
    if bad.any():
        first = int(relative[bad][0])
        context.fault(
            instruction,
            f"wrong {action} of {size} bytes at local memory + {first} (of {context.local.nbytes} bytes)",
            bad,
        )
    return (relative + context.local.origins())[active], active
