"""The lanes of an access as flat arrays."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bringup.compile.ptx.assembly.kernel import Instruction, Kernel
from bringup.compile.ptx.hardware.context import Context, Mask

Array = NDArray[Any]
WARP = 32
LARGEST = 4  # bytes of a granule


def by_warp(context: Context, index: Array, mask: Mask) -> tuple[Array, NDArray[np.bool_] | None]:
    """(requests, 32) offsets and active lanes (None: all), without warps that have no active lane.

    Inactive lanes repeat the offset of the first active one.
    """
    offsets = context.full(index).reshape(-1, WARP)
    if mask is None:
        return offsets, None
    active = context.full(mask).reshape(-1, WARP)
    some = active.any(1)
    if not some.all():
        offsets, active = offsets[some], active[some]
    if active.all():
        return offsets, None
    first = offsets[np.arange(len(offsets)), active.argmax(1)][:, None]
    return np.where(active, offsets, first), active


def distinct(values: Array) -> Array:
    """The number of distinct values in each row."""
    steps = values[:, 1:] - values[:, :-1]
    if (steps < 0).any():
        steps = np.diff(np.sort(values, axis=1), axis=1)
    return 1 + np.count_nonzero(steps, axis=1)


def active_pairs(context: Context, index: Array, mask: Mask) -> tuple[Array, Array, Array]:
    """The offset, row and thread of every active lane, flat."""
    offsets = context.full(index)
    rows, threads = _places(context.block_count, context.thread_count)
    if mask is None:
        return offsets.reshape(-1), rows.reshape(-1), threads.reshape(-1)
    active = context.full(mask)
    return offsets[active], rows[active], threads[active]


@lru_cache(maxsize=64)
def _places(blocks: int, threads: int) -> tuple[Array, Array]:
    """The row and the thread of every lane, (B, T), which no caller modifies."""
    rows, thread = np.indices((blocks, threads))
    return rows, thread.astype(np.int32)


def granules(offsets: Array, size: int, granule: int, *others: Array) -> tuple[Array, ...]:
    """The granules of accesses of `size` bytes, and the other arrays repeated to the same length."""
    count = max(1, size // granule)
    first = offsets // granule
    if count == 1:
        return first, *others
    return (first[:, None] + np.arange(count)).reshape(-1), *(np.repeat(other, count) for other in others)


def smallest_access(kernel: Kernel, space: str) -> int:
    """The bytes of the smallest element that the kernel loads from or stores to a state space, at most LARGEST."""
    smallest = LARGEST
    for instruction in kernel.instructions:
        opcode = instruction.opcode
        if opcode[0] in ("ld", "st", "atom", "red") and any(part.split("::")[0] == space for part in opcode):
            bits = "".join(character for character in opcode[-1] if character.isdigit())
            smallest = min(smallest, int(bits[:2]) // 8 if bits else LARGEST)
    return smallest


def place(kernel: Kernel, instruction: Instruction) -> str:
    """The line of the kernel's source, and the instruction."""
    return f"{kernel.where(instruction)}: {instruction.text}"
