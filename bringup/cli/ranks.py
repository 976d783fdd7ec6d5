"""What each rank of a tensor-parallel group would hold."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from bringup.adapters.blocks import Cut, first_cut
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
    """Slices the plan for every rank. Each axis that refuses is told once, with the nearest layout that does not."""
    axes = tuple(axis for axis in AXES if axis in divisible(plan))
    refusals = _refusals(plan, axes, ranks)
    if not refusals:
        return Shares([_nbytes(slice_plan(plan, axes, rank, ranks)) for rank in range(ranks)])
    below, above = range(ranks - 1, 0, -1), range(ranks + 1, 2 * ranks + 1)
    fit = [next((n for n in counts if not _refusals(plan, axes, n)), None) for counts in (below, above)]
    nearest = f"; every axis divides among {' or '.join(str(n) for n in fit if n)} ranks"
    return Shares(refusals=[replace(refusal, help=refusal.help + nearest) for refusal in refusals])


def _refusals(plan: Plan, axes: tuple[str, ...], ranks: int) -> list[Diagnostic]:
    found: list[Diagnostic] = []
    for axis in axes:
        try:
            part = slice_plan(plan, (axis,), 0, ranks)  # all are as long: where one ends at a block, all do
        except BringupError as error:
            found += error.findings
            continue
        if cut := first_cut(plan, part):
            found.append(_cut(plan, axis, ranks, cut))
    return found


def _cut(plan: Plan, axis: str, ranks: int, cut: Cut) -> Diagnostic:
    entry = plan.entries[cut.parameter]
    size = next(n.size for dimension in entry.declared.axes for n in dimension.walk() if n.name == axis)
    part = max(1, size // ranks)  # an axis shorter than the number of ranks is shared
    grain = ranks * cut.grain(part)
    padded = -(-size // grain) * grain
    return Diagnostic(
        code="BU136",
        message=f"`{cut.parameter}`: {ranks} ranks have {part} of the {size} of axis `{axis}` each, "
        f"which cuts blocks of {cut.block} values with one scale",
        help=f"keep `{axis}` whole, or pad it to {padded} in the adapter, {padded // ranks} for each rank",
        parameter=cut.parameter,
        sources=tuple(info.name for info in entry.tensors),
        where=entry.rule.site,
        declared=entry.declared.site,
    )


def _nbytes(plan: Plan) -> int:
    """Tied parameters are held once."""
    later = plan.aliases()
    return sum(entry.declared.nbytes for name, entry in plan.entries.items() if name not in later)
