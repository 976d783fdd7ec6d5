"""The context in which an expression is evaluated."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from bringup.adapters.algebra.computed import Computed
from bringup.adapters.algebra.copy_nest import Nest
from bringup.adapters.algebra.region import Region
from bringup.adapters.algebra.tensor_names import Names
from bringup.graphs.core.axes import Axes, AxesError, shape_of
from bringup.spec import TensorInfo


class WrongDtype(NamedTuple):
    """Tensors of a dtype that a node does not accept."""

    tensors: tuple[str, ...]
    dtype: str
    node: str
    accepted: tuple[str, ...]


@dataclass(slots=True)
class Scope:
    """The context of an expression: sizes of its target's axes, the checkpoint's names, pattern variables.

    `defaults` are the axes of a source that is the complete rule and declares none. `sources` collects what nests
    index: tensors in order of appearance, and value nodes. `misfits` collects tensors whose shape contradicts the
    declaration, and `wrong` those whose dtype a node does not accept, so that all of them are reported at once.
    """

    sizes: Mapping[str, int]
    defaults: Axes
    names: Names
    bindings: Mapping[str, str]
    blocks: Mapping[str, int] = field(default_factory=dict[str, int])
    sources: list[TensorInfo | Computed] = field(default_factory=list["TensorInfo | Computed"])
    misfits: list[tuple[TensorInfo, Axes]] = field(default_factory=list[tuple[TensorInfo, Axes]])
    wrong: list[WrongDtype] = field(default_factory=list[WrongDtype])

    def bound(self, variable: str, value: str) -> Scope:
        """The same context with another pattern variable. Collected items are shared."""
        bindings = {**self.bindings, variable: value}
        shared = self.sources, self.misfits, self.wrong
        return Scope(self.sizes, self.defaults, self.names, bindings, self.blocks, *shared)

    def whole(self, source: TensorInfo | Computed, axes: Axes) -> Region:
        """A source as a region: one nest without any movement."""
        count = math.prod(shape_of(axes))
        loops = ((count, 1, 1),) if count > 1 else ()
        return Region(axes, source.dtype, (Nest(self.add(source), source.dtype, 0, loops, 0),))

    def add(self, source: TensorInfo | Computed) -> int:
        """The index of a new source."""
        self.sources.append(source)
        return len(self.sources) - 1

    def check_dtypes(self, region: Region, accepted: Collection[str], node: str) -> None:
        """Records, once each, the tensors of a node's input whose dtype it does not accept."""
        if region.word > 1:  # read in parts, as one wider type
            views = {nest.source: region.dtype for nest in region.nests}
        else:
            views = {nest.source: nest.view for nest in region.nests}
        found: dict[str, list[str]] = {}
        noted = {(name, wrong.dtype) for wrong in self.wrong for name in wrong.tensors}
        for source, dtype in views.items():
            if dtype not in accepted and not self._follows(source, dtype, noted):
                found.setdefault(dtype, []).append(self.sources[source].name)
        for dtype, names in found.items():
            self.wrong.append(WrongDtype(tuple(names), dtype, node, tuple(sorted(accepted))))

    def _follows(self, source: int, dtype: str, noted: Collection[tuple[str, str]]) -> bool:
        """Whether a source is recorded with this dtype, or computed from one that is: one mistake is recorded once."""
        found = self.sources[source]
        if (found.name, dtype) in noted or not isinstance(found, Computed):
            return (found.name, dtype) in noted
        nests = (nest for region in found.inputs for nest in region.nests)
        return any(self._follows(nest.source, dtype, noted) for nest in nests)

    def number(self, axis: str, value: int) -> int:
        """A size or position along an axis, in blocks if the axis is counted in blocks."""
        block = self.blocks.get(axis, 1)
        if value % block:
            raise AxesError(f"{value} along `{axis}` cuts a {block}-wide quantisation block")
        return value // block
