"""Operations across the lanes of a warp (PTX ISA, "Parallel Synchronization": shfl.sync, vote.sync, match.sync,
redux.sync, elect.sync), and ldmatrix and stmatrix ("Warp Level Matrix Instructions").
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bringup.compile.ptx.assembly.kernel import Instruction
from bringup.compile.ptx.hardware.memory import check_shared
from bringup.compile.ptx.hardware.spaces import SHARED_BASE

if TYPE_CHECKING:
    from bringup.compile.ptx.hardware.context import Context, Mask

Array = NDArray[Any]
WARP = 32
LANES = np.arange(WARP)
_REDUCE: dict[str, Any] = {
    "add": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}


def butterfly(value: Array, distance: int) -> Array:
    """shfl.sync.bfly of complete warps: each lane receives the value of lane ^ distance."""
    array = np.asarray(value)
    if array.ndim < 2 or array.shape[1] == 1:
        return array
    if distance & (distance - 1):
        return _by_warp(array)[:, :, LANES ^ distance].reshape(array.shape)
    rows, threads = array.shape
    return array.reshape(rows, threads // (2 * distance), 2, distance)[:, :, ::-1, :].reshape(rows, threads)


def shuffle(context: Context, mode: str, value: Array, lane: Array, clamp: int, mask: Mask) -> tuple[Array, Array]:
    """The value of each lane's source lane, and whether that is in range; otherwise the lane's own value.

    `clamp` is operand c: the last lane in bits 0-4, the segment mask in bits 8-12.
    """
    last, segment = clamp & 31, (clamp >> 8) & 31
    limit = (LANES & segment) | (last & ~segment)
    array = np.asarray(value)
    width = context.thread_count
    rows = array.shape[0] if array.ndim == 2 else 1
    if np.ndim(lane) == 0:
        source, inside = _source(mode, np.int64(lane) & 31, segment, limit)
        taken = _by_warp(np.broadcast_to(array, (rows, width)))[:, :, source].reshape(rows, width)
        return taken, np.tile(inside, width // WARP)[None, :]
    lanes = _by_warp(context.full(np.asarray(lane).astype(np.int64) & 31))
    source, inside = _source(mode, lanes, segment, limit)
    taken = np.take_along_axis(_by_warp(context.full(array)), source, 2)
    return taken.reshape(context.block_count, width), inside.reshape(context.block_count, width)


def _source(mode: str, lane: Any, segment: int, limit: Array) -> tuple[Array, Array]:
    if mode == "up":
        source = LANES - lane
        inside = source >= limit
    else:
        indexed = (LANES & segment) | (lane & ~segment)
        source = {"down": LANES + lane, "bfly": LANES ^ lane, "idx": indexed}[mode]
        inside = source <= limit
    return np.where(inside, source, LANES), inside


def _by_warp(array: Array) -> Array:
    return array.reshape(array.shape[0], -1, WARP)


def _spread(per_warp: Array) -> Array:
    """(B, warps) -> (B, T)."""
    return np.repeat(per_warp, WARP, axis=1)


def reduce_warp(context: Context, operation: str, value: Array, mask: Mask) -> Array:
    """redux.sync: add, min, max, and, or, xor over the active lanes of each warp."""
    warps = _by_warp(context.full(value))
    combine = _REDUCE[operation]
    if mask is not None and not np.logical_and.reduce(mask, axis=None):
        identity: int = {"add": 0, "or": 0, "xor": 0, "and": -1}.get(operation, 0)
        if operation in ("min", "max"):
            limits = np.iinfo(warps.dtype)
            identity = int(limits.max if operation == "min" else limits.min)
        neutral = np.asarray(identity & _all_bits(warps.dtype), f"u{warps.dtype.itemsize}").view(warps.dtype)
        warps = np.where(_by_warp(context.full(mask)), warps, neutral)
    return _spread(combine.reduce(warps, axis=2, dtype=warps.dtype))


def _all_bits(dtype: np.dtype[Any]) -> int:
    return (1 << 8 * dtype.itemsize) - 1


def ballot(context: Context, predicate: Array, mask: Mask) -> Array:
    """vote.sync.ballot: one bit for each active lane whose predicate holds."""
    holds = context.full(predicate if mask is None else predicate & mask)
    return _spread((_by_warp(holds).astype(np.uint32) << LANES.astype(np.uint32)).sum(2, dtype=np.uint32))


def elect(context: Context, mask: Mask) -> tuple[Array, Array]:
    """elect.sync: the lowest active lane of each warp, and whether a lane is that lane."""
    active = _by_warp(context.full(np.True_ if mask is None else mask))
    first = active.argmax(2)
    leads = (first[:, :, None] == LANES) & active
    return _spread(first.astype(np.uint32)), leads.reshape(context.block_count, context.thread_count)


def match_any(context: Context, value: Array, mask: Mask) -> Array:
    """match.any.sync: a mask of the active lanes of the warp that have the lane's value."""
    warps = _by_warp(context.full(value))
    equal = warps[:, :, :, None] == warps[:, :, None, :]
    if mask is not None:
        equal = equal & _by_warp(context.full(mask))[:, :, None, :]
    bits = (equal.astype(np.uint32) << LANES.astype(np.uint32)).sum(3, dtype=np.uint32)
    return bits.reshape(context.block_count, context.thread_count)


def match_all(context: Context, value: Array, mask: Mask) -> tuple[Array, Array]:
    """match.all.sync: a mask of the active lanes if all have the same value, else 0; and whether they have."""
    active = ballot(context, np.ones((), np.bool_), mask)
    same = match_any(context, value, mask)
    alike = _by_warp(context.full((same == active) if mask is None else (same == active) | ~mask))
    equal = _spread(np.logical_and.reduce(alike, axis=2))
    return np.where(equal, active, np.uint32(0)), equal


def load_matrix(
    context: Context, address: Array, offset: int, count: int, transpose: bool, mask: Mask, instruction: Instruction
) -> list[Array]:
    """ldmatrix.m8n8.b16: loads `count` matrices; lane 8 i + r has the address of row r of matrix i.

    Lane l receives elements 2 (l % 4) and 2 (l % 4) + 1 of row l / 4; of the transposed matrix with `transpose`.
    """
    places, _, taking = _matrix_rows(context, address, offset, count, mask, instruction, "load")
    for observer in context.launch.observers:
        observer.read_shared(context, instruction, places, taking, 16)
    rows = _addressed(context, places, taking, count)
    halves = context.shared.vectors(16, 2).take(rows, axis=0)  # (B, warps, count, row, column)
    if transpose:
        halves = halves.swapaxes(-1, -2)
    words = np.ascontiguousarray(halves).view(np.uint32)  # (B, warps, count, row, 4)
    shape = (context.block_count, context.thread_count)
    return [words[:, :, matrix].reshape(shape) for matrix in range(count)]


def store_matrix(
    context: Context,
    address: Array,
    offset: int,
    values: list[Array],
    transpose: bool,
    mask: Mask,
    instruction: Instruction,
) -> None:
    """stmatrix.m8n8.b16: stores matrices in the layout of `load_matrix`."""
    count = len(values)
    places, active, taking = _matrix_rows(context, address, offset, count, mask, instruction, "store")
    words = np.stack([_by_warp(context.full(value)) for value in values], 2)  # (B, warps, count, lane)
    halves = np.ascontiguousarray(words).view(np.uint16).reshape(*words.shape[:3], 8, 8)
    if transpose:
        halves = np.ascontiguousarray(halves.swapaxes(-1, -2))
    if context.launch.observers:
        stored = _words_of_rows(halves, context.thread_count)
        for observer in context.launch.observers:
            observer.write_shared(context, instruction, places, taking, 16, stored)
    rows = _addressed(context, places, taking, count)
    live = _by_warp(active)[:, :, : 8 * count].reshape(rows.shape)
    context.shared.vectors(16, 2)[rows[live]] = halves[live]


def _words_of_rows(halves: Array, threads: int) -> list[Array]:
    """Four words (B, T): the 16-byte row of each lane that holds an address; 0 in other lanes."""
    blocks, warps, count = halves.shape[:3]
    words = np.zeros((blocks, warps, 32, 4), np.uint32)
    words[:, :, : 8 * count] = np.ascontiguousarray(halves).view(np.uint32).reshape(blocks, warps, 8 * count, 4)
    return list(np.moveaxis(words.reshape(blocks, threads, 4), -1, 0))


def _matrix_rows(
    context: Context, address: Array, offset: int, count: int, mask: Mask, instruction: Instruction, action: str
) -> tuple[Array, Array, Array]:
    """Offsets of the rows (B, T), the active lanes, and the lanes that hold an address. Checks their accesses."""
    places = context.full(np.asarray(address).astype(np.int64) + np.int64(offset - SHARED_BASE))
    active = context.full(np.True_ if mask is None else mask)
    taking = active & context.full(context.launch.lane < 8 * count)
    selected = places[taking]
    if selected.size:
        check_shared(context, places, taking, selected, 16, instruction, f"matrix {action}")
    return places, active, taking


def _addressed(context: Context, places: Array, taking: Array, count: int) -> Array:
    """The 16-byte rows that the lanes address: (B, warps, count, 8); 0 for inactive lanes."""
    rows = np.where(taking, places + context.shared.origins, 0) >> 4
    return _by_warp(rows)[:, :, : 8 * count].reshape(context.block_count, -1, count, 8)
