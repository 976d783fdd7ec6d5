"""What every rank holds, summed without a plan for each: equal layers are measured once for each position in a stage.

A rank's part of a parameter depends on the parameter's region, on its axes and on the rank's position in its stage. So
the work is that of the different layers and positions, not that of all parameters and ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import NamedTuple

from bringup.adapters.apply.parallel import Parallel, Rank
from bringup.adapters.apply.rank_plan import Stages, experts_of, is_added_later, names_of_stage, rank_plan
from bringup.adapters.planning.plan import Plan

Measure = Callable[[Plan, Collection[str]], Sequence[int]]


class Alike(NamedTuple):
    """Parameters that read the same tensors, and the number of groups of a stage with equal parts.

    `tied` are those that hold the values of another parameter of the stage. Groups with equal `key` have equal parts.
    """

    key: tuple[object, ...]
    names: tuple[str, ...]
    tied: frozenset[str]
    times: int = 1


def shares(
    plan: Plan, parallel: Parallel, stages: Stages, measure: Measure, apart: Collection[str] = ()
) -> list[tuple[int, ...]]:
    """For each rank, the sums of `measure(part, tied)` over parts of its plan, which together are all of it.

    `measure` gets the rank's plan of the parameters that read the same tensors; `tied` are those of them with the
    values of another parameter that the rank holds. Parameters in `apart` are not equal to any others. Raises as
    `rank_plan` does.
    """
    in_stage = replace(parallel, pp=1, stage_layers=())
    aliases = plan.aliases()
    known: dict[tuple[tuple[object, ...], int], Sequence[int]] = {}

    def measured(group: Alike, at: int) -> Sequence[int]:
        key = group.key, at
        if key not in known:
            part = replace(plan, entries={name: plan.entries[name] for name in group.names})
            known[key] = measure(rank_plan(part, in_stage, at, stages), group.tied)
        return known[key]

    nothing = measure(replace(plan, entries={}), ())
    found: list[tuple[int, ...]] = []
    for stage in range(parallel.pp):
        names = names_of_stage(plan, parallel, stage, stages)
        held = frozenset(names)
        tied = {name for name in names if aliases.get(name) in held}
        groups = _alike(plan, names, tied, lambda name: (*_facts(plan, name, parallel, stages), name in apart))
        for at in range(parallel.stage_ranks):
            each = ([value * group.times for value in measured(group, at)] for group in groups)
            found.append(tuple(map(sum, zip(nothing, *each, strict=True))))
    return found


def _alike(
    plan: Plan, names: Sequence[str], tied: Collection[str], facts: Callable[[str], tuple[object, ...]]
) -> list[Alike]:
    """The groups of a stage, in the order of the plan."""
    readers: dict[tuple[int, ...], list[str]] = {}
    for name in names:
        readers.setdefault(tuple(map(id, plan.entries[name].tensors)), []).append(name)
    found: dict[tuple[object, ...], Alike] = {}
    for group in readers.values():
        key = tuple((*facts(name), name in tied) for name in group)
        same = found.get(key)
        found[key] = (
            same._replace(times=same.times + 1) if same else Alike(key, tuple(group), frozenset(tied) & {*group})
        )
    return list(found.values())


def _facts(plan: Plan, name: str, parallel: Parallel, stages: Stages) -> tuple[object, ...]:
    """What a rank's part of a parameter depends on, besides the rank's position."""
    entry = plan.entries[name]
    shards = parallel.stage_ranks
    both = [Rank(number=0, stage=0, tp=tp, ep=0, expert_tp=1 - tp, expert_tps=shards) for tp in (0, 1)]
    added = [is_added_later(plan, name, rank) for rank in both]
    experts = experts_of(entry, name, parallel, stages)
    return id(entry.region), entry.declared.axes, entry.declared.dtype, experts, *added
