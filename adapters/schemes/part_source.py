"""One of the tensors that a matrix is stored in, as a source whose shape follows from the matrix's."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bringup.adapters.algebra.computed import Computed
from bringup.adapters.algebra.expr import Expr, Source, Unary
from bringup.adapters.algebra.quantised import without_ones
from bringup.adapters.algebra.region import Region
from bringup.adapters.algebra.scope import Scope
from bringup.graphs.core.axes import Axes, AxesError, Axis, shape_of
from bringup.graphs.core.form import count
from bringup.spec import Shape

if TYPE_CHECKING:
    import numpy as np

NOWHERE = Source("", "", {})
_DIMENSION = re.compile(r"(out|in|all)(?:([/*])(\d+))?|(\d+)")


@dataclass(frozen=True)
class PartSource(Source):
    """`layout` is what `Stored.matrix` describes; `of` is the source of the matrix that this is a part of.

    A dimension `all` has every element of the matrix, row after row. Axes are named by their place, since a scheme's
    movements go by position. Converters differ about dimensions of 1: a tensor that lacks some, or has more, fits.
    """

    of: Source = NOWHERE
    layout: str = ""
    block_key: str = ""  # of the config: how many values share a scale
    keeps_order: bool = False  # as `Stored.keeps_order`

    def stored(self, scope: Scope, shape: Shape | None) -> Axes:
        """The axes by the matrix's declaration, else by `shape`; () where neither tells."""
        rows, columns, experts = _matrix_sizes(self.of.stored(scope, None), keeps_order=self.keeps_order)
        sizes = {"out": rows, "in": columns, "all": rows * columns}
        axes = [Axis("experts", experts)] if experts else []
        for name, sign, number, fixed in dimensions(self.layout):
            size = sizes.get(name, 0)
            of = int(number or 1)
            axes.append(Axis(name or "n", int(fixed) if fixed else size * of if sign == "*" else count(size, of)))
        if shape is not None and len(shape) == len(axes):
            axes = [axis if axis.size else Axis(axis.name, n) for axis, n in zip(axes, shape, strict=True)]
        elif shape is not None and without_ones(shape) == without_ones(shape_of(tuple(axes))):
            axes = [Axis("n", size) for size in shape]
        return tuple(axes)


@dataclass(frozen=True)
class Within(Unary):
    """The first indices of each dimension, as many as `layout` has for the matrix of `source`: padding is left out."""

    of: Expr
    source: Source
    layout: str
    keeps_order: bool

    def region(self, scope: Scope) -> Region:
        region = self.of.region(scope)
        part = PartSource("", "", {}, of=self.source, layout=self.layout, keeps_order=self.keeps_order)
        axes = part.stored(scope, region.shape)
        if all(axis.size >= size for axis, size in zip(axes, region.shape, strict=True)):
            return region
        each = tuple((1, 1) for _ in axes)
        computed = Computed(
            "leave out padding", (region,), shape_of(axes), region.dtype, Cropped(shape_of(axes)), exact=True,
            inverse=Padded(region.shape), grains=(each,),
        )  # fmt: skip
        return scope.whole(computed, axes)


@dataclass(frozen=True, slots=True)
class Cropped:
    """The first indices of each dimension."""

    shape: Shape

    def __call__(self, array: np.ndarray) -> np.ndarray:
        return array[tuple(slice(size) for size in self.shape)]


@dataclass(frozen=True, slots=True)
class Padded:
    """`Cropped` undone: with zeros, as converters fill up words."""

    shape: Shape

    def __call__(self, array: np.ndarray) -> tuple[np.ndarray]:
        import numpy as np

        whole = np.zeros(self.shape, array.dtype)
        whole[tuple(slice(size) for size in array.shape)] = array
        return (whole,)


def dimensions(layout: str) -> Iterator[tuple[str, str, str, str]]:
    """(name, sign, number, fixed size) of each dimension. Raises AxesError for what is none."""
    for word in layout.split():
        found = _DIMENSION.fullmatch(word)
        if found is None:
            raise AxesError(f"`{word}` is no dimension of a matrix: write out, in, all, in/128, in*2 or a number")
        name, sign, number, fixed = found.groups(default="")
        yield name, sign, number, fixed


def _matrix_sizes(plain: Axes, *, keeps_order: bool) -> tuple[int, int, int]:
    """Rows, columns and experts (0 for a plain matrix) of a tensor with these axes; 0 for a size that is not known."""
    sizes = [axis.size for axis in plain]
    experts = sizes.pop(0) if len(sizes) == 3 else 0
    if len(sizes) != 2:
        return 0, 0, 0
    rows, columns = reversed(sizes) if columns_first(plain, keeps_order=keeps_order) else sizes
    return rows, columns, experts


def columns_first(plain: Axes, *, keeps_order: bool) -> bool:
    """Whether a plain tensor with these axes has columns before rows, and its quantised form has not.

    So have tensors whose axes are called `in out`, and those of experts, [experts, columns, rows] in transformers.
    """
    return len(plain) == 3 or (not keeps_order and [axis.name for axis in plain] == ["in", "out"])


def block_of(layout: str) -> Shape | None:
    """The rows and columns of which a part has one value; None for a part with several for each, as codes have."""
    found = [*dimensions(layout)]
    if [name for name, *_ in found] != ["out", "in"] or any(sign == "*" for _, sign, *_ in found):
        return None
    block = tuple(int(number or 1) for _, _, number, _ in found)
    return None if block == (1, 1) else block


def matrix_of(layout: str, shape: Shape) -> Shape | None:
    """The shape [rows, columns] of the matrix that has codes in this layout; None for a part that does not tell."""
    found = [*dimensions(layout)]
    if [name for name, *_ in found] != ["out", "in"] or len(shape) != 2 or any(number for *_, number, _ in found):
        return None
    return shape


def same_stem(one: str, other: str) -> bool:
    """Whether two parts are of one module, whatever prefix one of them has."""
    return other.rpartition(".")[0].endswith(one.rpartition(".")[0])
