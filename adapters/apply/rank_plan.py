"""The plan of one rank: every kind of parallelism is a clip of the same copy nests, by the names of axes.

| kind | parameter | part of a rank |
|---|---|---|
| column, merged column | `out:(h d) in:m`, `out:(t h d) in:m`, `out:f in:m` | a range of `h` or `f` |
| row | `out:m in:(h d)`, `out:m in:f` | a range of `h` or `f`; its bias is added on the first rank |
| qkv with fewer key heads than ranks | `out:(g d) in:m` | a range of `g`, or one head that several ranks hold |
| vocabulary | `vocab m`, `out:vocab in:m` | a range of rows, zeros after the last |
| expert | `e f m` | complete experts, or a range of `f` of each |
| router | `out:e in:m`, `e` | all of it |
| stage | layers | a range of layers; parameters before them are in the first stage, the others in the last |
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from bringup.adapters.algebra.region import Region, concat
from bringup.adapters.apply.parallel import Parallel, Rank
from bringup.adapters.apply.shard import clip, share
from bringup.adapters.planning.plan import Entry, Plan

if TYPE_CHECKING:
    from bringup.graphs.core.graph import Graph
from bringup.diagnostics import did_you_mean, fail
from bringup.graphs.core.axes import Axis, show
from bringup.graphs.core.signature import Declared, Signature

HEADS, FFN, VOCAB, EXPERT = ("h", "g"), "f", "vocab", "e"
Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Stages:
    """The path of the layers of a graph (`model.layers`), and their number."""

    path: str = ""
    count: int = 0

    @classmethod
    def of(cls, graph: Graph) -> Stages:
        """The layers of a graph."""
        return cls(graph.layer_path, len(graph.layers))

    def layer(self, name: str) -> int | None:
        """The layer of a parameter; None outside of layers."""
        found = re.match(rf"{re.escape(self.path)}\.(\d+)\.", name) if self.path else None
        return int(found[1]) if found else None


def rank_plan(plan: Plan, parallel: Parallel, number: int, stages: Stages) -> Plan:
    """The parameters that rank `number` holds, without those of other stages.

    Raises BU045 for a number out of range or fewer layers than stages, BU130 if an axis does not divide, BU138 for an
    expert map that does not fit.
    """
    rank = parallel.rank(number)
    if parallel.is_whole:
        return plan
    known: dict[tuple[object, ...], Region] = {}
    entries: dict[str, Entry] = {}
    for name in names_of_stage(plan, parallel, rank.stage, stages):
        entry = plan.entries[name]
        experts = experts_of(entry, name, parallel, stages)
        added = parallel.bias == "every" or not is_added_later(plan, name, rank)
        key = id(entry.region), entry.declared.axes, experts, added  # identical layers are clipped once
        if key not in known:
            region = _cut(entry, parallel, rank, experts)
            known[key] = region if added else replace(region, nests=())
        region = known[key]
        entries[name] = replace(entry, declared=replace(entry.declared, axes=region.axes), region=region)
        _check_words(name, entries[name], parallel)
    signature = Signature({name: entry.declared for name, entry in entries.items()})
    return replace(plan, signature=signature, entries=entries)


def experts_of(entry: Entry, name: str, parallel: Parallel, stages: Stages) -> Sequence[int]:
    """The logical expert of each physical one of a parameter; () for a parameter without experts. Raises BU138."""
    count = _expert_axis(entry.declared)
    return parallel.physical(count, stages.layer(name) or 0) if count else ()


def names_of_stage(plan: Plan, parallel: Parallel, stage: int, stages: Stages) -> list[str]:
    """The parameters of a stage. Raises BU045 for fewer layers than stages."""
    if parallel.pp == 1:
        return list(plan.entries)
    layers = parallel.stages(stages.count)[stage]
    first, last = stage == 0, stage == parallel.pp - 1
    names: list[str] = []
    below = False  # whether a layer has been declared already
    for name in plan.signature:
        layer = stages.layer(name)
        below = below or layer is not None
        held = (last if below else first) if layer is None else layer in layers
        if held and name in plan.entries:
            names.append(name)
    return names


def _expert_axis(declared: Declared) -> int:
    """The number of experts whose weights a parameter has; 0 for all others, such as a router's.

    In the weights of experts, `e` is a dimension of its own and not the only one. It may be the sum of several, if
    shared experts follow the routed ones (`fuse.shared_as_experts`).
    """
    if len(declared.axes) < 2:
        return 0
    own = (axis for axis in declared.axes if axis.name == EXPERT and (axis.sum or not axis.parts))
    return next((axis.size for axis in own), 0)


def has_experts(entry: Entry) -> bool:
    """Whether a parameter has the weights of experts."""
    return _expert_axis(entry.declared) > 0


def _names(axis: Axis) -> set[str]:
    return {node.name for node in axis.walk() if not node.parts}


def _divided(declared: Declared) -> set[str]:
    """The axes of a parameter that tensor parallelism divides."""
    return {name for axis in declared.axes for name in _names(axis)} & {*HEADS, FFN}


def is_added_later(plan: Plan, name: str, rank: Rank) -> bool:
    """Whether this is the bias of a row-parallel layer on a rank that does not add it: the first rank of a sum does.

    A layer is row-parallel if its weight is divided along the axis that it sums over: its bias does not have this axis.
    """
    weight_name = f"{name.removesuffix('bias')}weight" if name.endswith(".bias") else name.removesuffix("_bias")
    weight = plan.signature.get(weight_name)
    if weight_name == name or _divided(plan.signature[name]):
        return False
    if weight is None or not _divided(weight):
        return False
    return (rank.expert_tp if _expert_axis(weight) else rank.tp) > 0


def _cut(entry: Entry, parallel: Parallel, rank: Rank, experts: Sequence[int]) -> Region:
    name, sizes = entry.declared.name, dict[str, int]()
    for axis in entry.declared.axes:
        sizes |= {node.name: node.size for node in axis.walk() if node.name and not node.parts}
    at, of = (rank.expert_tp, rank.expert_tps) if experts else (rank.tp, parallel.tp)
    ranges = {axis: share(name, axis, sizes[axis], at, of) for axis in (*HEADS, FFN) if axis in sizes and of > 1}
    region = clip(entry.region, ranges) if ranges else entry.region
    whole = parallel.vocab == "head" and any(axis.name == VOCAB for axis in region.axes)  # a head has `out:vocab`
    if VOCAB in sizes and not whole:
        region = _rows(region, sizes[VOCAB], parallel, rank)
    if experts:
        region = _experts(name, region, parallel, rank, experts)
    return region


def _rows(region: Region, size: int, parallel: Parallel, rank: Rank) -> Region:
    """A rank's rows of the vocabulary, padded."""
    step = math.lcm(parallel.tp, parallel.vocab_multiple)
    each = -(-size // step) * step // parallel.tp
    if parallel.tp == 1 and each == size:
        return region
    start, stop = min(rank.tp * each, size), min((rank.tp + 1) * each, size)
    return pieces(region, VOCAB, [(start, stop)], each)


def _experts(name: str, region: Region, parallel: Parallel, rank: Rank, experts: Sequence[int]) -> Region:
    """A rank's physical experts: ranges of consecutive experts, concatenated."""
    start, stop = share(name, EXPERT, len(experts), rank.ep, parallel.ep)
    own = experts[start:stop]
    if list(own) == list(range(next(a.size for a in region.axes if a.name == EXPERT))):
        return region
    cuts = [0, *(k for k, (a, b) in enumerate(pairwise(own), 1) if b != a + 1), len(own)]
    return pieces(region, EXPERT, [(own[a], own[b - 1] + 1) for a, b in pairwise(cuts)], len(own))


def pieces(region: Region, name: str, spans: Sequence[Span], size: int) -> Region:
    """Ranges of one axis, concatenated, then zeros up to `size`.

    The axis is a dimension, or its only part, or for experts a sum of their axes; raises BU130 otherwise.
    """
    k = next((k for k, axis in enumerate(region.axes) if _names(axis) == {name}), None)
    if k is None or (region.axes[k].sum and name != EXPERT):
        help = f"declare `{name}` as a separate dimension, or do not divide it"
        raise fail(
            "BU130", f"axis `{name}` of `{show(region.axes)}` is a part of a dimension: it cannot be divided", help=help
        )
    whole = [span for span in spans if span[0] < span[1]]
    flat = replace(region, axes=(*region.axes[:k], Axis(name, region.axes[k].size), *region.axes[k + 1 :]))
    parts = [flat.window(k, *span) for span in whole]
    parts = parts or [replace(flat.window(k, 0, 1), nests=())]
    joined = concat(parts, k, name) if len(parts) > 1 else parts[0]
    if joined.shape[k] < size:
        joined = joined.padded(k, 0, size - joined.shape[k])
    axis = Axis(name, size) if region.axes[k].sum else region.axes[k].sized({name: size})
    return replace(joined, axes=(*joined.axes[:k], axis, *joined.axes[k + 1 :]))


def _check_words(name: str, entry: Entry, parallel: Parallel) -> None:
    """Raises BU130 if a part ends inside a word of packed values."""
    pack = entry.declared.pack
    if pack and math.prod(entry.declared.storage[0]) * pack[1] != math.prod(entry.region.shape):
        raise fail("BU130", f"`{name}`: {parallel.size} ranks split words of {pack[1]} values")


def check_axes(plan: Plan, parallel: Parallel) -> None:
    """Raises BU130 for parallelism without effect, such as expert parallelism of a model without experts.

    Raises BU138 for such a model if experts are repeated or mapped.
    """
    declared = [entry.declared for entry in plan.entries.values()]
    names = {name for each in declared for axis in each.axes for name in _names(axis) if name}
    any_experts = any(map(_expert_axis, declared))
    for option, given in (("redundant-experts", parallel.redundant), ("expert-map", parallel.experts)):
        if declared and given and not any_experts:
            raise fail("BU138", "the model has no experts to place on ranks", help=f"leave out --{option}")
    wanted = [("ep", EXPERT, any_experts)]
    wanted += [("tp", FFN, bool(names & {*HEADS, FFN, VOCAB}))]
    for option, axis, there in wanted:
        if declared and getattr(parallel, option) > 1 and not there:
            message = f"no parameter has an axis `{axis}` to divide among {getattr(parallel, option)} ranks"
            raise fail("BU130", message, help=did_you_mean(axis, names) or f"leave out --{option}")
