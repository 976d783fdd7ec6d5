"""What each rank of a tensor-parallel group would hold."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from bringup.adapters.apply.shard import SHARED, divisible, slice_plan
from bringup.adapters.apply.shard_alignment import Cut, first_cut
from bringup.adapters.apply.stored_size import stored_nbytes
from bringup.adapters.planning.plan import Plan
from bringup.diagnostics import BringupError, Diagnostic

AXES = ("h", "g", "f", "vocab")
"""Axes that tensor parallelism divides: query heads, key heads, feed-forward, vocabulary. Each rank has a part of every
expert; to have whole experts, some each, is expert parallelism."""


@dataclass(slots=True)
class Shares:
    """Bytes of each rank; or, when an axis does not divide, why.

    `nbytes` are in the parameters' dtypes. `stored` are payloads and scales as the checkpoint has them, where these are
    fewer or more.
    """

    nbytes: list[int] = field(default_factory=list[int])
    stored: list[int] = field(default_factory=list[int])
    refusals: list[Diagnostic] = field(default_factory=list[Diagnostic])


def divide(plan: Plan, ranks: int) -> Shares:
    """Slices the plan for every rank. Each axis that refuses is told once, with the nearest layout that does not."""
    sizes = {axis: found for axis, found in divisible(plan).items() if axis in AXES}
    if not plan.entries:
        return Shares()  # nothing could be planned, which the check reports
    axes = tuple(axis for axis in AXES if axis in sizes)
    largest = max(((max(found), axis) for axis, found in sizes.items()), default=(1, ""))
    refusals = [_beyond(ranks, *largest)] if ranks > largest[0] else _refusals(plan, axes, ranks)
    if not refusals:
        parts = [slice_plan(plan, axes, rank, ranks) for rank in range(ranks)]
        nbytes, stored = [_nbytes(part) for part in parts], [stored_nbytes(part) for part in parts]
        return Shares(nbytes, stored if stored != nbytes else [])
    counts = _counts(sizes)
    below, above = [n for n in counts[::-1] if 1 < n < ranks], [n for n in counts if n > ranks]
    fit = [next((n for n in some if not _refusals(plan, axes, n)), None) for some in (below, above)]
    nearest = (
        f"; every axis divides among {' or '.join(str(n) for n in fit if n)} ranks"
        if any(fit)
        else "; no number of ranks above 1 divides every axis"
    )
    return Shares(refusals=[replace(refusal, help=refusal.help + nearest) for refusal in refusals])


def _beyond(ranks: int, size: int, axis: str) -> Diagnostic:
    said = f"{ranks:,} ranks are more than any axis has indices: the largest to divide, `{axis}`, has {size:,}"
    if not axis:
        said = f"no parameter has an axis to divide among {ranks:,} ranks ({', '.join(AXES)})"
    return Diagnostic(code="BU130", message=said, help="use fewer ranks")


def _counts(sizes: Mapping[str, Collection[int]]) -> list[int]:
    """The numbers of ranks that divide every axis, smallest first; key and value heads may be replicated."""
    whole = math.gcd(*(size for axis, found in sizes.items() if axis not in SHARED for size in found))
    heads = [size for axis, found in sizes.items() if axis in SHARED for size in found]
    counts = {n for k in range(1, math.isqrt(whole) + 1) if whole % k == 0 for n in (k, whole // k)}
    return sorted(n for n in counts if all(size % n == 0 or n % size == 0 for size in heads))


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
        message=f"`{cut.parameter}`: splitting `{axis}` ({size}) over {ranks} ranks gives {part} each, "
        f"which cuts quantisation blocks of {cut.block}",
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
