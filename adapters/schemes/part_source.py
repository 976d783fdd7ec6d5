"""One of the tensors that a matrix is stored in, as a source whose shape follows from the matrix's."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from bringup.adapters.algebra.computed import Computed
from bringup.adapters.algebra.expr import Expr, Source, Unary
from bringup.adapters.algebra.pattern import fill
from bringup.adapters.algebra.quantised import QuantisedMatrix, without_ones
from bringup.adapters.algebra.region import Region
from bringup.adapters.algebra.scope import Scope
from bringup.graphs.core.axes import Axes, AxesError, Axis, shape_of
from bringup.graphs.core.form import WHOLE, count
from bringup.spec import DTYPES, Shape

if TYPE_CHECKING:
    import numpy as np

NOWHERE = Source("", "", {})
_DIMENSION = re.compile(r"(out|in|all)(?:\*(\d+))?(?:([/:])(\d+))?|(\d+)|any")


class Dimension(NamedTuple):
    """One dimension of a part: `times` elements for each `of` values along `name`; `fixed` if that is "" or "any".

    `packed`: these elements contain all those values. Otherwise they are shared by them, as scales are.
    """

    name: str
    times: int = 1
    of: int = 1
    packed: bool = False
    fixed: int = 0

    def size(self, whole: int) -> int:
        """The number of elements along an axis of size `whole`; 0 if that is not known."""
        return count(whole * self.times, self.of) if self.name and (whole or not self.of) else self.fixed


@dataclass(frozen=True)
class PartSource(Source):
    """`layout` is the one that `Stored.matrix` describes; `of` is the source of the matrix that this is a part of.

    A dimension `all` has every element of the matrix in row-major order. Axes are named by position, since a scheme's
    movements refer to positions. Converters differ in dimensions of 1: a tensor with fewer or more of them matches.
    """

    of: Source = NOWHERE
    layout: str = ""
    block_key: str = ""  # of the config: the number of values that share a scale
    keeps_order: bool = False  # as `Stored.keeps_order`

    def region(self, scope: Scope) -> Region:
        """The tensor in the dimensions of the layout. Words of another width would contain other values: they are
        recorded as a wrong dtype.
        """
        region = super().region(scope)
        if any(one.packed for one in dimensions(self.layout)):
            scope.check_dtypes(region, as_wide_as(self.dtype), "numbers in words")
        axes = self._laid_out(scope, region.shape)
        same = without_ones(region.shape) == without_ones(shape_of(axes))
        info = scope.names.get(fill(self.name, scope.bindings))
        if info and not (axes or same):  # a scalar has no axes, which `Source` takes for unknown ones
            scope.misfits.append((info, axes))
        return replace(region, axes=axes) if same else region

    def has_shape(self, axes: Axes) -> bool:
        """As of other sources; but without axes it is a scalar."""
        return 0 not in shape_of(axes)

    def stored(self, scope: Scope, shape: Shape | None) -> Axes:
        """The axes by the matrix's declaration, else by `shape`; sizes that neither determines are 0."""
        axes = self._laid_out(scope, shape)
        if shape is None or without_ones(shape) != without_ones(shape_of(axes)):
            return axes
        return axes if shape == shape_of(axes) else tuple(Axis("n", size) for size in shape)

    def _laid_out(self, scope: Scope, shape: Shape | None) -> Axes:
        """The layout's dimensions; a size that the declaration does not determine is that of `shape`, in which
        dimensions of 1 may differ."""
        rows, columns, experts = matrix_sizes(self.of, scope, keeps_order=self.keeps_order)
        known = {"out": rows, "in": columns, "all": rows * columns}
        axes = [Axis("experts", experts)] if experts else []
        axes += (Axis(found.name or "n", found.size(known.get(found.name, 0))) for found in dimensions(self.layout))
        whole = shape is None or len(shape) == len(axes)
        at = [k for k, axis in enumerate(axes) if whole or axis.size != 1]
        sizes = () if shape is None else shape if whole else without_ones(shape)
        if len(sizes) == len(at):
            for k, size in zip(at, sizes, strict=True):
                axes[k] = axes[k] if axes[k].size else Axis(axes[k].name, size)
        return tuple(axes)


@dataclass(frozen=True)
class Within(Unary):
    """The first indices of each dimension, up to the size in `layout` for the matrix of `source`, without padding."""

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
    """The inverse of `Cropped`: pads with zeros, as converters do."""

    shape: Shape

    def __call__(self, array: np.ndarray) -> tuple[np.ndarray]:
        import numpy as np

        whole = np.zeros(self.shape, array.dtype)
        whole[tuple(slice(size) for size in array.shape)] = array
        return (whole,)


@dataclass(frozen=True)
class ByRows(Expr):
    """The matrix `source` from `of`, a single row of all its elements in row-major order, with blocks across rows.

    A form describes blocks within a row: there is none if a row ends inside of a block.
    """

    of: QuantisedMatrix
    source: Source

    def inputs(self) -> tuple[Expr, ...]:
        return self.of.inputs()

    def region(self, scope: Scope) -> Region:
        _, columns, _ = matrix_sizes(self.source, scope, keeps_order=False)
        if not columns:
            raise AxesError("the rule does not determine the number of columns of the matrix")
        whole = columns % self.of.form.block[1] == 0
        blocks = {part.name: columns // part.block[1] if whole else WHOLE for part in self.of.form.parts()}
        parts = {name: _Rows(part, blocks[name]) for name, part in self.of.parts.items()}
        matrix = replace(self.of, parts=parts).region(scope)
        if whole:
            return matrix
        computed = scope.sources[-1]
        assert isinstance(computed, Computed)
        scope.sources[-1] = replace(computed, form=None, formless="its blocks continue from row to row")
        return _rows(matrix, columns)


@dataclass(frozen=True)
class OfSize(Expr):
    """The expression that `make` creates from the rows and columns of the matrix `source`; 0 for an unknown number."""

    make: Callable[[int, int], Expr]
    source: Source

    def inputs(self) -> tuple[Expr, ...]:
        return self.make(0, 0).inputs()

    def region(self, scope: Scope) -> Region:
        rows, columns, _ = matrix_sizes(self.source, scope, keeps_order=False)
        return self.make(rows, columns).region(scope)


@dataclass(frozen=True)
class _Rows(Unary):
    of: Expr
    columns: int

    def region(self, scope: Scope) -> Region:
        return _rows(self.of.region(scope), self.columns)


def _rows(region: Region, columns: int) -> Region:
    """The same elements in the same order, in rows or as a single one. Another size is a misfit, reported before."""
    size = math.prod(region.shape)
    return replace(region, axes=(Axis("out", size // (columns or size)), Axis("in", columns or size)))


@cache
def as_wide_as(dtype: str) -> frozenset[str]:
    """The dtype, and integers of as many bits."""
    bits = DTYPES[dtype].bits
    return frozenset(
        {dtype, *(name for name, one in DTYPES.items() if one.kind in ("int", "uint") and one.bits == bits)}
    )


@cache
def dimensions(layout: str) -> tuple[Dimension, ...]:
    """The dimensions of a layout. Raises AxesError for an invalid one."""
    return tuple(_dimensions(layout))


def _dimensions(layout: str) -> Iterator[Dimension]:
    for word in layout.split():
        found = _DIMENSION.fullmatch(word)
        if found is None:
            example = "out, in, all, in/128, in:8, in*2, any or a number"
            raise AxesError(f"`{word}` is not a dimension of a matrix: write {example}")
        name, times, sign, of, fixed = found.groups(default="")
        yield Dimension(name, int(times or 1), int(of or 1), sign == ":", int(fixed or 0))


def matrix_sizes(plain: Source, scope: Scope, *, keeps_order: bool) -> tuple[int, int, int]:
    """Rows, columns and experts (0 for a plain matrix) of a plain tensor; 0 for an unknown size."""
    axes = plain.stored(scope, None)
    sizes = [axis.size for axis in axes]
    experts = sizes.pop(0) if len(sizes) == 3 else 0
    if len(sizes) != 2:
        return 0, 0, 0
    rows, columns = reversed(sizes) if columns_first(plain, axes, keeps_order=keeps_order) else sizes
    return rows, columns, experts


def columns_first(plain: Source, axes: Axes, *, keeps_order: bool) -> bool:
    """Whether a plain tensor with these axes has columns before rows, but not its quantised form.

    This applies to axes `in out`, and to parameters of all experts, [experts, columns, rows] in transformers. Those
    of a module, `M.weight`, are [experts, rows, columns], as in Granite 4.
    """
    if len(axes) == 3:
        return not plain.name.endswith(".weight")
    return not keeps_order and [axis.name for axis in axes] == ["in", "out"]


@cache
def block_of(layout: str) -> Shape | None:
    """The rows and columns that share a value of a part; None for a part with all values, such as codes."""
    found = {one.name: one for one in dimensions(layout)}
    if found.keys() != {"out", "in"} or any(one.times > 1 and not one.packed for one in found.values()):
        return None
    block = tuple(1 if found[name].packed else found[name].of for name in ("out", "in"))
    return None if block == (1, 1) else block


def values_of(layout: str, shape: Shape) -> Shape | None:
    """The number of rows and columns of values in a part of that shape; None for a part that does not determine it."""
    found = dimensions(layout)
    if {one.name for one in found} != {"out", "in"} or len(shape) != len(found):
        return None
    sizes = {one.name: n * one.of // one.times if one.packed else n for one, n in zip(found, shape, strict=True)}
    return sizes["out"], sizes["in"]
