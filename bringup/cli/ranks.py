"""What each rank of a tensor-parallel group would hold."""

from __future__ import annotations

from dataclasses import dataclass, field

from bringup.adapters.plan import Plan
from bringup.adapters.slicing import divisible, slice_plan
from bringup.diagnostics import BringupError, Diagnostic

AXES = ("h", "g", "f", "vocab")
"""Axes that tensor parallelism divides: query heads, key heads, feed-forward, vocabulary. Each rank has a part of every
expert; to have whole experts, some each, is expert parallelism."""


@dataclass(slots=True)
class Shares:
    """Bytes of each rank; or, when an axis does not divide, why."""

    nbytes: list[int] = field(default_factory=list[int])
    refusals: list[Diagnostic] = field(default_factory=list[Diagnostic])


def divide(plan: Plan, ranks: int) -> Shares:
    """Slices the plan for every rank. Each axis that refuses is told once."""
    shares = Shares()
    axes = tuple(axis for axis in AXES if axis in divisible(plan))
    for axis in axes:
        try:
            slice_plan(plan, (axis,), 0, ranks)
        except BringupError as error:
            shares.refusals += error.findings
    if not shares.refusals:
        shares.nbytes = [_nbytes(slice_plan(plan, axes, rank, ranks)) for rank in range(ranks)]
    return shares


def _nbytes(plan: Plan) -> int:
    """Tied parameters are held once."""
    later = plan.aliases()
    return sum(entry.declared.nbytes for name, entry in plan.entries.items() if name not in later)
