"""The memory and the reads of each rank of a group, or the reason why the model cannot be divided."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace

from bringup.adapters.apply.byte_runs import read_nbytes
from bringup.adapters.apply.parallel import Parallel
from bringup.adapters.apply.rank_plan import Stages, check_axes, has_experts
from bringup.adapters.apply.shard import SHARED, divisible, slice_plan
from bringup.adapters.apply.shard_alignment import Cut, first_cut
from bringup.adapters.apply.shares import shares
from bringup.adapters.planning.plan import Entry, Plan
from bringup.diagnostics import BringupError, Diagnostic

AXES = ("h", "g", "f")
"""Axes that tensor parallelism divides evenly: query heads, key heads, feed-forward. The vocabulary is padded."""
VOCAB = "vocab"
NO_STAGES = Stages()


@dataclass(slots=True)
class Shares:
    """Bytes of each rank; or, if an axis does not divide, the reason.

    `nbytes` are in the parameters' dtypes (`compile.packed_job.packed_shares` has those of packed ones). `read` is the
    number of bytes of the checkpoint's files that a conversion of that rank alone reads.
    """

    nbytes: list[int] = field(default_factory=list[int])
    read: list[int] = field(default_factory=list[int])
    refusals: list[Diagnostic] = field(default_factory=list[Diagnostic])


def divide(plan: Plan, parallel: Parallel | int, stages: Stages = NO_STAGES, *, packed: bool = True) -> Shares:
    """The shares of every rank; a number is that of tensor-parallel ranks.

    With `packed`, quantised weights stay packed, so that no part may cut a quantisation block. Each axis that does not
    divide is reported once, with the nearest number of ranks that divides it.
    """
    parallel = Parallel(tp=parallel) if isinstance(parallel, int) else parallel
    if not plan.entries:
        return Shares()  # nothing could be planned, which the check reports
    refusals = _refusals(plan, parallel, packed)
    if not refusals:
        try:
            check_axes(plan, parallel)
            found = shares(plan, parallel, stages, _held_and_read)
        except BringupError as error:
            return Shares(refusals=list(error.findings))
        return Shares([held for held, _ in found], [read for _, read in found])
    counts = _counts({axis: sizes for axis, sizes in divisible(plan).items() if axis in AXES})
    below = [n for n in counts[::-1] if 1 < n < parallel.tp]
    above = [n for n in counts if n > parallel.tp]

    def fits(n: int) -> bool:
        return not _refusals(plan, replace(parallel, tp=n, ep=parallel.ep if parallel.ep < parallel.tp else 1), packed)

    fit = [next((n for n in some if fits(n)), None) for some in (below, above)]
    nearest = (
        f"; every axis divides among {' or '.join(str(n) for n in fit if n)} ranks"
        if any(fit)
        else "; no number of ranks above 1 divides every axis"
    )
    return Shares(refusals=[replace(refusal, help=refusal.help + nearest) for refusal in refusals])


def _beyond(ranks: int, size: int, axis: str) -> Diagnostic:
    message = f"{ranks:,} ranks are more than any axis has indices: the largest to divide, `{axis}`, has {size:,}"
    if not axis:
        message = f"no parameter has an axis to divide among {ranks:,} ranks ({', '.join((*AXES, VOCAB))})"
    return Diagnostic(code="BU130", message=message, help="use fewer ranks")


def _counts(sizes: Mapping[str, Collection[int]]) -> list[int]:
    """The numbers of ranks that divide every axis, smallest first; key and value heads may be replicated."""
    whole = math.gcd(*(size for axis, found in sizes.items() if axis not in SHARED for size in found))
    heads = [size for axis, found in sizes.items() if axis in SHARED for size in found]
    counts = {n for k in range(1, math.isqrt(whole) + 1) if whole % k == 0 for n in (k, whole // k)}
    return sorted(n for n in counts if all(size % n == 0 or n % size == 0 for size in heads))


def _refusals(plan: Plan, parallel: Parallel, packed: bool) -> list[Diagnostic]:
    """Every axis that does not divide. For experts, `f` is divided among the ranks that share them."""
    sizes = {axis: found for axis, found in divisible(plan).items() if axis in (*AXES, VOCAB)}
    largest = max(((max(found), axis) for axis, found in sizes.items()), default=(1, ""))
    if parallel.tp > largest[0]:
        return [_beyond(parallel.tp, *largest)]
    experts, dense = _some(plan, has_experts), _some(plan, lambda entry: not has_experts(entry))
    of_experts = parallel.rank(0).expert_tps
    found = [refusal for axis in AXES for refusal in _refused(dense, axis, parallel.tp, packed)]
    found += _refused(experts, "f", of_experts, packed)
    even = all(size % parallel.tp == 0 for size in sizes.get(VOCAB, ()))
    return found + (_refused(dense, VOCAB, parallel.tp, packed) if even else [])


def _some(plan: Plan, keep: Callable[[Entry], bool]) -> Plan:
    return replace(plan, entries={name: entry for name, entry in plan.entries.items() if keep(entry)})


def _refused(plan: Plan, axis: str, ranks: int, packed: bool) -> list[Diagnostic]:
    """The reason why one axis cannot be divided: its size, or quantisation blocks of packed weights."""
    if ranks == 1 or axis not in divisible(plan):
        return []
    try:
        part = slice_plan(plan, (axis,), 0, ranks)  # all parts are equally long: if one ends at a block, all do
    except BringupError as error:
        return list(error.findings)
    cut = first_cut(plan, part) if packed else None
    return [_cut(plan, axis, ranks, cut)] if cut else []


def _cut(plan: Plan, axis: str, ranks: int, cut: Cut) -> Diagnostic:
    entry = plan.entries[cut.parameter]
    size = next(n.size for dimension in entry.declared.axes for n in dimension.walk() if n.name == axis)
    part = max(1, size // ranks)  # an axis shorter than the number of ranks is replicated
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


def _held_and_read(plan: Plan, tied: Collection[str]) -> tuple[int, int]:
    """Bytes of a rank's parameters, without tied ones; and bytes of files that they are read from."""
    return sum(entry.declared.nbytes for name, entry in plan.entries.items() if name not in tied), read_nbytes([plan])
