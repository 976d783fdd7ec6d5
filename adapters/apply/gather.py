"""Parameters from the parts that ranks hold: the copy nests that write a rank's tensors, with source and result
swapped.

The inverse of any `rank_plan` and `lay_out`, derived from them, so that no second table is needed.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from bringup.adapters.algebra.copy_nest import Nest, project, row_major
from bringup.adapters.algebra.expr import Expr, Source
from bringup.adapters.algebra.region import Region, joined_dtype
from bringup.adapters.algebra.scope import Scope
from bringup.adapters.algebra.tensor_names import Names
from bringup.adapters.planning.adapter import Adapter
from bringup.adapters.planning.plan import Entry, Plan
from bringup.adapters.planning.rules import Rule
from bringup.graphs.core.axes import Axes, shape_of
from bringup.graphs.core.signature import Signature
from bringup.spec import Site, TensorInfo

NONE: Mapping[str, str] = {}
SAME = "another rank holds the same"
REST = "another rank holds the rest of it, or it is padding"
UNREAD = "it is padding, or another parameter has the same values"


@dataclass(frozen=True)
class Gathered(Expr):
    """An array of these axes, from parts of tensors; `nests` index `parts`."""

    axes: Axes
    parts: tuple[Source, ...]
    nests: tuple[Nest, ...]

    def inputs(self) -> tuple[Expr, ...]:
        return self.parts

    def region(self, scope: Scope) -> Region:
        first = len(scope.sources)
        infos = [scope.names[part.name] for part in self.parts]
        wanted = [part.stored(scope, None) for part in self.parts]
        scope.misfits += [pair for pair in zip(infos, wanted, strict=True) if pair[0].shape != shape_of(pair[1])]
        scope.sources += infos
        nests = tuple(replace(n, source=first + n.source, view=infos[n.source].dtype) for n in self.nests)
        return Region(self.axes, joined_dtype([info.dtype for info in infos]), nests)


def itself(signature: Signature) -> Plan:
    """The plan for arrays that are the parameters already, each under its own name."""
    site, entries, regions = Site.outside(__file__), dict[str, Entry](), dict[tuple[Axes, str], Region]()
    for name, declared in signature.items():
        info = TensorInfo(name, declared.dtype, shape_of(declared.axes))
        key = declared.axes, declared.dtype  # identical layers share one region
        if key not in regions:
            regions[key] = Scope({}, (), Names({}), {}).whole(info, declared.axes)
        entries[name] = Entry(declared, Rule(name, _source(name, declared.axes), site), (info,), regions[key])
    return Plan(signature, {}, entries)


def gathered(
    adapter: Adapter, signature: Signature, held: Mapping[str, Plan], elsewhere: Mapping[str, str] = NONE
) -> Adapter:
    """The adapter with a rule for each parameter, from the tensors of `held`: each plan's have their own prefix.

    The plans are that of `itself`, divided and laid out; together they hold every parameter, except those that
    `elsewhere` maps to another parameter with the same values. A part that several hold is read from the first. The
    remaining tensors are dropped, with the reason.
    """
    found: dict[str, dict[object, tuple[str, Nest]]] = {}
    stored: dict[str, Axes] = {}
    copies: dict[str, str] = {}  # of each tensor, the one that has all its elements at the same places, if there is one
    for prefix, plan in held.items():
        for name, entry in plan.entries.items():
            tensor, holders = prefix + name, set[str]()
            stored[tensor] = entry.region.axes
            for nest in entry.region.nests:
                key = nest.src, *sorted((extent, src) for extent, src, _ in nest.loops)  # the part of the parameter
                own = nest.swapped()
                parts = found.setdefault(entry.sources[nest.source].name, {})
                holder, first = parts.setdefault(key, (tensor, own))
                holders.add(holder if first == own and stored[holder] == stored[tensor] else "")
            if holders:
                copies[tensor] = holders.pop() if len(holders) == 1 else ""
    site, read = Site.outside(__file__), Counter[str]()
    rules: list[Rule] = []
    for name, declared in signature.items():
        parts = list(found[elsewhere.get(name, name)].values())
        assert sum(nest.count for _, nest in parts) == math.prod(shape_of(declared.axes)), name
        read.update({tensor: 0 for tensor, _ in parts})
        for tensor, nest in parts:
            read[tensor] += 0 if name in elsewhere else nest.count
        rules.append(Rule(name, _gathered(declared.axes, parts, stored), site))
    done = replace(adapter, rules=[*adapter.rules, *rules], drops=[*adapter.drops], trace=None)
    for tensor, axes in stored.items():
        if read[tensor] == 0:
            done.drop(tensor, why=SAME if tensor in copies else UNREAD, same_as=copies.get(tensor, ""))
        elif read[tensor] < math.prod(shape_of(axes)):
            done.drop(tensor, why=REST)
    return done


def _gathered(axes: Axes, parts: list[tuple[str, Nest]], stored: Mapping[str, Axes]) -> Gathered:
    tensors = list(dict.fromkeys(tensor for tensor, _ in parts))
    nests = [replace(nest, source=tensors.index(tensor)) for tensor, nest in parts]
    sizes = shape_of(axes)
    sources = tuple(_source(tensor, stored[tensor]) for tensor in tensors)
    return Gathered(axes, sources, project(nests, sizes, row_major(sizes)))


def _source(name: str, axes: Axes) -> Source:
    """A tensor of these sizes; the `checkpoint_names` of layers do not apply to its name."""
    sizes = {axis.name or f"axis{k}": axis.size for k, axis in enumerate(axes)}
    return Source(name, " ".join(sizes), sizes, literal=True)
