"""The tree of modules, with their declarations and sizes; equal layers are one row."""

from __future__ import annotations

import math
from collections.abc import Iterator

from bringup.compile.report.model_parts import PARTS, parts
from bringup.compile.report.record import Record
from bringup.graphs.core.axes import Axis, shape_of
from bringup.graphs.core.module import Const, Leaf, Module, Param, State
from bringup.graphs.core.signature import Declared
from bringup.grouping import grouped
from bringup.render.html.section import Section
from bringup.render.html.table import folded
from bringup.render.html.tags import Html, code, tag
from bringup.render.words import count, size
from bringup.spec import DTYPES

OPEN = 3  # levels of the tree that are expanded initially


def modules(record: Record) -> Section:
    """Every module and leaf; figures inside a collapsed row are those of one of its layers."""
    lead = "Equal layers are one row; the figures below it are those of one layer. Tied parameters are weighed once."
    return Section("modules", "Modules", lead, (tag("div", _Tree(record).root(), class_="tree"),))


class _Tree:
    def __init__(self, record: Record) -> None:
        self.graph = record.job.graph
        self.signature = record.job.plan.signature
        self.aliases = record.job.plan.aliases()
        self.parts = parts(self.graph)
        self.total = sum(self._weights(self.graph, "").values()) or 1

    def root(self) -> Html:
        return self._module(self.graph, "", type(self.graph).__name__, 1, 0)

    def _module(self, module: Module, prefix: str, name: str, times: int, depth: int) -> Html:
        weights = self._weights(module, prefix)
        values, nbytes = self._values(module, prefix), sum(weights.values())
        each = f"{times} \N{MULTIPLICATION SIGN} " if times > 1 else ""
        row = (
            code(name),
            tag("span", type(module).__name__, class_="type"),
            _bar({part: times * weight / self.total for part, weight in weights.items()}),
            tag("span", f"{each}{count(values)}" if values else "", class_="number"),
            tag("span", f"{each}{size(nbytes)}" if nbytes else "", class_="number"),
        )
        inside = tag("ul", *(tag("li", child) for child in self._children(module, prefix, depth + 1)))
        return folded(tag("span", *row, class_="row"), inside, open="" if depth < OPEN else None)

    def _children(self, module: Module, prefix: str, depth: int) -> Iterator[Html]:
        for names, child in _equal_children(module):
            full = prefix + names[0]
            if isinstance(child, Module):
                yield self._module(child, f"{full}.", ", ".join(grouped(names)), len(names), depth)
            else:
                yield self._leaf(full, names[0], child)

    def _leaf(self, full: str, name: str, leaf: Leaf) -> Html:
        first = self.aliases.get(full)
        tied = tag("span", "tied to ", code(first), class_="mark tied") if first else None
        axes = tag("span", " ".join(map(sized, leaf.axes)), " ", tied, class_="axes")
        if isinstance(leaf, Param):
            shape, dtype = self.signature[full].storage
            weight = "" if first else size(self.signature[full].nbytes)
            facts = count(math.prod(shape_of(leaf.axes))), weight
        else:
            shape, dtype = shape_of(leaf.axes), leaf.declared_dtype or self.graph.dtype
            facts = "", _storage(leaf, dtype)
        stored = tag("span", f"{_shape(shape)} {dtype}", class_="stored")
        return tag(
            "div",
            tag("span", code(name), axes, class_="declared"),
            stored,
            *(tag("span", fact, class_="number") for fact in facts),
            class_="row leaf",
        )

    def _own(self, module: Module, prefix: str) -> list[Declared]:
        """A module's parameters, of tied ones the first."""
        names = [prefix + name for name, _ in module.leaves(Param)]
        return [self.signature[name] for name in names if name not in self.aliases]

    def _values(self, module: Module, prefix: str) -> int:
        return sum(math.prod(shape_of(declared.axes)) for declared in self._own(module, prefix))

    def _weights(self, module: Module, prefix: str) -> dict[str, int]:
        """Bytes by part of the model."""
        weights: dict[str, int] = dict.fromkeys(PARTS, 0)
        for declared in self._own(module, prefix):
            weights[self.parts[declared.name]] += declared.nbytes
        return weights


def _equal_children(module: Module) -> list[tuple[list[str], Leaf | Module]]:
    """Children by name; those of a list that compute the same function are grouped."""
    groups: list[tuple[list[str], Leaf | Module, object]] = []
    for name, child in module.children():
        structure = (
            (name.rpartition(".")[0], child.structural_key()) if isinstance(child, Module) and "." in name else None
        )
        known = next((names for names, _, like in groups if structure and like == structure), None)
        if known:
            known.append(name)
        else:
            groups.append(([name], child, structure))
    return [(names, child) for names, child, _ in groups]


def _bar(shares: dict[str, float]) -> Html:
    """Adjacent segments with fractions of the whole model."""
    bars, at = [tag("rect", width="100%", height="100%", class_="track")], 0.0
    for part, share in shares.items():
        width = f"{100 * share:.2f}%"
        bars += [tag("rect", x=f"{100 * at:.2f}%", width=width, height="100%", class_=f"part {part}")] if share else []
        at += share
    return tag("svg", *bars, height=6, aria_hidden="true")


def sized(axis: Axis) -> str:
    """An axis with the sizes of its parts: `out:(t=3 h=12 d=64)`."""
    if not axis.parts:
        return (f"{axis.name}={axis.size}" if axis.size else axis.name) if axis.name else str(axis.size)
    inner = (" | " if axis.sum else " ").join(map(sized, axis.parts))
    return f"{axis.name}:({inner})" if axis.name else f"({inner})"


def _shape(shape: tuple[int, ...]) -> str:
    return f"[{', '.join(str(extent) if extent else '·' for extent in shape)}]"


def _storage(leaf: Leaf, dtype: str) -> str:
    if isinstance(leaf, State) and leaf.of is not None:
        return "state of an earlier layer"
    if isinstance(leaf, State):
        return f"state, {size(DTYPES[dtype].nbytes(shape_of(leaf.axes[1:])))} a token"
    assert isinstance(leaf, Const)
    return "computed table"
