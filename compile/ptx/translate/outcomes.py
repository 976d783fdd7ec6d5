"""Outcomes: where the lanes are after a basic block, as returned by translated code.

An integer is the next block of all lanes that ran, or END if they returned. Otherwise it is one of the classes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bringup.compile.ptx.assembly.kernel import Instruction
from bringup.compile.ptx.hardware.context import Context, Mask
from bringup.compile.ptx.hardware.values import all_lanes, any_lane

END = -1
"""The block number after a return."""


@dataclass(frozen=True, slots=True)
class Diverged:
    """Lanes of one thread block continue in different basic blocks: (block, lanes) of each."""

    parts: tuple[tuple[int, NDArray[np.bool_]], ...]


@dataclass(frozen=True, slots=True)
class Divided:
    """Thread blocks continue in different basic blocks: `rows` (B,) in `taken`, the others in `other`."""

    rows: NDArray[np.bool_]
    taken: int
    other: int


@dataclass(frozen=True, slots=True, eq=False)
class Waiting:
    """Lanes wait at barrier `identity` for `count` threads (0: all of the block), and continue at block `after`.

    `lanes` None: all. `passing` are the lanes that do not wait, because their predicate is false.
    """

    identity: int
    count: int
    lanes: Mask
    passing: Mask
    after: int
    instruction: Instruction


Outcome = int | Diverged | Divided | Waiting


def branch(context: Context, mask: Mask, predicate: Any, taken: int, other: int) -> Outcome:
    """A predicated branch of the lanes of a mask."""
    if np.ndim(predicate) == 0:
        return taken if predicate else other
    if mask is not None:
        lanes = context.full(predicate)
        parts = (taken, mask & lanes), (other, mask & ~lanes)
        present = tuple((block, part) for block, part in parts if any_lane(part))
        return present[0][0] if len(present) == 1 else Diverged(present)
    if all_lanes(predicate):
        return taken
    if not any_lane(predicate):
        return other
    if len(predicate) > 1:
        first = predicate[:, :1]
        if predicate.shape[1] == 1 or all_lanes(predicate == first):
            return Divided(first[:, 0], taken, other)
    lanes = context.full(predicate)
    return Diverged(((taken, lanes), (other, context.full(~predicate))))


def wait(
    mask: Mask, predicate: Any, identity: int, count: int, after: int, instruction: Instruction, context: Context
) -> Waiting:
    """bar.sync of the lanes of a mask; with a predicate, of the lanes where it holds."""
    if predicate is None or (np.ndim(predicate) == 0 and predicate):
        return Waiting(identity, count, mask, None, after, instruction)
    chosen = context.full(predicate)
    lanes, passing = (chosen, ~chosen) if mask is None else (mask & chosen, mask & ~chosen)
    return Waiting(identity, count, lanes, passing, after, instruction)


def trap(context: Context, mask: Mask, instruction: Instruction) -> None:
    """trap. Raises `Fault` if any lane runs it."""
    if mask is None or any_lane(mask):
        context.fault(instruction, "the kernel stopped itself (trap)", mask)
