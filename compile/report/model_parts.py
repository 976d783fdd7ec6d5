"""The part of a model that each parameter belongs to, and the sizes of the parts of each layer.

Determined by structure alone, so that it applies to any graph: a module with a state for the next step is attention,
one with only vectors is a norm, one with an axis `vocab` or `position` is a table of embeddings.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from bringup.adapters.planning.plan import Plan
from bringup.graphs.core.axes import leaf_names
from bringup.graphs.core.graph import Graph
from bringup.graphs.core.module import Module, Param, State

PARTS = ("embedding", "attention", "feed-forward", "norm", "other")


@dataclass(frozen=True, slots=True)
class Place:
    """A layer by its full name (`transformer.h.3`), or the modules `before` or `after` the layers; bytes by part."""

    name: str
    nbytes: dict[str, int]


def parts(graph: Graph) -> dict[str, str]:
    """The part of every module and parameter by its full name: one of PARTS."""
    return dict(_parts(graph, "", "other", {id(layer) for layer in graph.layers}))


def _parts(module: Module, name: str, part: str, layers: set[int]) -> Iterator[tuple[str, str]]:
    own = {leaf: child.axes for leaf, child in module.children() if isinstance(child, Param)}
    if id(module) in layers:
        part = "feed-forward"
    elif any(not {"vocab", "position"}.isdisjoint(leaf_names(axes)) for axes in own.values()):
        part = "embedding"
    elif own and all(len(axes) == 1 for axes in own.values()):
        part = "norm"
    elif part == "feed-forward" and next(module.leaves(State), None):
        part = "attention"
    yield name, part
    prefix = f"{name}." if name else ""
    yield from ((prefix + leaf, part) for leaf in own)
    for child, inner in module.children():
        if isinstance(inner, Module):
            yield from _parts(inner, prefix + child, part, layers)


def places(graph: Graph, plan: Plan) -> list[Place]:
    """The sizes of each layer's parts, tied parameters counted once, in the order of declaration."""
    before, after = Place("before", {}), Place("after", {})
    layers = {
        f"{graph.layer_path}.{index}": Place(f"{graph.layer_path}.{index}", {}) for index in range(len(graph.layers))
    }
    depth = graph.layer_path.count(".") + 2
    known, aliases, outside = parts(graph), plan.aliases(), before
    for name, declared in plan.signature.items():
        layer = layers.get(".".join(name.split(".")[:depth]))
        outside = after if layer else outside
        if name not in aliases:
            nbytes = (layer or outside).nbytes
            nbytes[known[name]] = nbytes.get(known[name], 0) + declared.nbytes
    return [place for place in (before, *layers.values(), after) if place.nbytes]
