"""Physical buffers: a target's layout of the graph's parameters, and the position of each parameter.

A program reads buffers. In a forward, a parameter is a view of a buffer; its region follows from the copy nests of the
layout's rule.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import TYPE_CHECKING

from bringup.adapters.algebra.computed import Computed
from bringup.adapters.algebra.copy_nest import Loop, Nest, row_major
from bringup.adapters.apply.fuse import lay_out
from bringup.adapters.planning.adapter import Adapter
from bringup.adapters.planning.expected_headers import as_declared
from bringup.adapters.planning.plan import Entry, make_plan
from bringup.diagnostics import fail
from bringup.graphs.core.graph import Graph
from bringup.graphs.core.signature import Declared
from bringup.spec import Shape, TensorInfo

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class View:
    """A parameter of `shape` in a buffer: the elements at `offset` + Σ i · stride, i < size, in the order of the loops.

    `offset` and `strides` count elements.
    """

    buffer: str
    offset: int
    sizes: Shape
    strides: Shape
    shape: Shape
    starts: Shape | None = None  # if it is a box of the buffer, its first index on each axis

    def of(self, buffer: Tensor) -> Tensor:
        """The parameter as a view of `buffer`. A box is selected with `narrow`, which every compiler supports."""
        if self.starts is None:
            return buffer.as_strided(self.sizes, self.strides, self.offset).reshape(self.shape)
        for axis, (start, size) in enumerate(zip(self.starts, self.shape, strict=True)):
            if size != buffer.shape[axis]:
                buffer = buffer.narrow(axis, start, size)
        return buffer


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffers:
    """The buffers that a layout adds, and the parameters in them, each by name. Empty: all parameters as declared."""

    declared: Mapping[str, Declared] = field(default_factory=dict[str, Declared])
    views: Mapping[str, View] = field(default_factory=dict[str, View])

    def below(self, prefix: str) -> list[tuple[str, View, Shape, str]]:
        """The parameters in buffers below a prefix: name without the prefix, view, shape and dtype of the buffer."""
        found = ((name, view) for name, view in sorted(self.views.items()) if name.startswith(prefix))
        return [
            (name[len(prefix) :], replace(view, buffer=view.buffer.removeprefix(prefix)), *self._storage(view))
            for name, view in found
        ]

    def _storage(self, view: View) -> tuple[Shape, str]:
        return self.declared[view.buffer].storage


AS_DECLARED = Buffers()


def buffers_of(graph: Graph, layout: Adapter | None) -> Buffers:
    """The buffers of a graph's parameters in a layout.

    Raises BU131 if a parameter is not one region of its buffer, or if layers that are lowered once would differ.
    """
    if layout is None:
        return AS_DECLARED
    signature = graph.signature()
    headers = {name: TensorInfo(name, d.storage[1], d.storage[0]) for name, d in signature.items()}
    plan = lay_out(make_plan(signature, as_declared(signature), headers), layout)
    added = {name: e for name, e in plan.entries.items() if any(e.rule is rule for rule in layout.rules)}
    views = {parameter: view for entry in added.values() for parameter, view in _views(entry)}
    buffers = Buffers(declared={name: entry.declared for name, entry in added.items()}, views=views)
    _check_layers(graph, buffers)
    return buffers


def _check_layers(graph: Graph, buffers: Buffers) -> None:
    """Raises BU131 if the buffers of two layers of one kind differ: layers of one kind share their functions."""
    for index, kind in enumerate(graph.layer_classes()):
        first, other = (buffers.below(f"{graph.layer_path}.{each}.") for each in (kind, index))
        if first != other:
            name = next((name for pair in zip_longest(first, other, fillvalue=("",)) for name, *_ in pair if name), "")
            message = f"the layout treats layers {kind} and {index} differently, which are lowered once: see `{name}`"
            raise fail("BU131", message, help="write one rule for all layers: `{p:**}.…`")


def _views(entry: Entry) -> Iterator[tuple[str, View]]:
    sizes, _ = entry.declared.storage
    nests: dict[int, list[Nest]] = {}
    for nest in entry.region.nests:
        nests.setdefault(nest.source, []).append(nest)
    for number, source in enumerate(entry.sources):
        found = nests.get(number, [])
        if isinstance(source, Computed) or len(found) != 1 or (view := _view(entry, source, found[0], sizes)) is None:
            raise fail(
                "BU131",
                f"`{source.name}` is not one region of the buffer `{entry.declared.name}`",
                help="a layout moves complete parameters: write its rule with cat, stack, pad and mv",
                where=entry.rule.site,
            )
        yield source.name, view


def _view(entry: Entry, source: TensorInfo, nest: Nest, buffer: Shape) -> View | None:
    loops = sorted((loop for loop in nest.loops if loop[0] > 1), key=lambda loop: -loop[1])
    dense = row_major([extent for extent, _, _ in loops])
    whole = math.prod(source.shape) == math.prod(extent for extent, _, _ in loops)
    if nest.src or not whole or dense != tuple(stride for _, stride, _ in loops):
        return None
    return View(
        entry.declared.name,
        nest.dst,
        tuple(extent for extent, _, _ in loops),
        tuple(stride for _, _, stride in loops),
        source.shape,
        _box(source.shape, loops, nest.dst, buffer),
    )


def _box(shape: Shape, loops: list[Loop], offset: int, buffer: Shape) -> Shape | None:
    """The first index of a box on each axis of the buffer; None if the region is not a box."""
    if len(shape) != len(buffer):
        return None
    strides = row_major(buffer)
    for size, own, wanted in zip(shape, row_major(shape), strides, strict=True):
        steps = [
            own // inner * outer for extent, inner, outer in loops if inner <= own and own * size <= inner * extent
        ]
        if size > 1 and steps != [wanted]:
            return None
    starts = tuple(offset // stride % size for stride, size in zip(strides, buffer, strict=True))
    inside = all(start + size <= whole for start, size, whole in zip(starts, shape, buffer, strict=True))
    return starts if inside else None  # an axis of size 1 has any stride
