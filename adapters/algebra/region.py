"""A planned array: named axes, a dtype, and the copy nests that fill it. Every movement returns a new one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

from bringup.adapters.algebra.copy_nest import Nest, project, row_major
from bringup.graphs.core.axes import Axes, AxesError, Axis, permutation, shape_of, show
from bringup.spec import DTYPES, FLOATS, Shape


@dataclass(frozen=True, slots=True)
class Region:
    """`nests` count in units: elements of `dtype`, or `word` smaller elements that make up each of them."""

    axes: Axes
    dtype: str
    nests: tuple[Nest, ...]
    word: int = 1

    @property
    def shape(self) -> Shape:
        return shape_of(self.axes)

    @property
    def size(self) -> int:
        """The number of units."""
        return math.prod(self.shape) * self.word

    def to(self, wanted: Axes) -> Region:
        """Rearranged to other axes of the same names. Raises AxesError if names or sizes differ."""
        factors, order = permutation(self.axes, wanted)
        if order == tuple(range(len(order))):
            return replace(self, axes=wanted)
        return self._permuted(factors, order, wanted)

    def rearrange(self, before: Axes, after: Axes) -> Region:
        """einops-style: `before` names the dimensions, and `after` is their new order."""
        if shape_of(before) != self.shape:
            raise AxesError(f"`{show(before)}` has shape {list(shape_of(before))}, the tensor {list(self.shape)}")
        return replace(self, axes=before).to(after)

    def _permuted(self, factors: Axes, order: Sequence[int], axes: Axes) -> Region:
        sizes = [factor.size for factor in factors]
        strides = [0] * len(order)
        for position, stride in zip(order, row_major([sizes[k] for k in order]), strict=True):
            strides[position] = stride * self.word
        return replace(self, axes=axes, nests=project(self.nests, [*sizes, self.word], [*strides, 1]))

    def window(self, axis: int, start: int, stop: int) -> Region:
        """The range start <= i < stop of one dimension."""
        size = self.axes[axis].size
        if not 0 <= start < stop <= size:
            raise AxesError(f"range {start}:{stop} is not inside axis `{self.axes[axis]}` of size {size}")
        if (start, stop) == (0, size):
            return self
        part = self._part(self.axes[axis], start, stop)
        outer, inner = math.prod(self.shape[:axis]), math.prod(self.shape[axis + 1 :]) * self.word
        nests = project(self.nests, (outer, size, inner), ((stop - start) * inner, inner, 1), window=(1, start, stop))
        return replace(self, axes=(*self.axes[:axis], part, *self.axes[axis + 1 :]), nests=nests)

    @staticmethod
    def _part(axis: Axis, start: int, stop: int) -> Axis:
        """The axis of a range: a part of a sum keeps its own axes, a range of a product's outer axis the inner ones."""
        at = 0
        for part in axis.parts if axis.sum else ():
            if (at, at + part.size) == (start, stop):
                return part
            at += part.size
        inner = math.prod(part.size for part in axis.parts[1:])
        if axis.parts and not axis.sum and start % inner == stop % inner == 0:
            first = Axis(axis.parts[0].name, (stop - start) // inner)
            return replace(axis, size=stop - start, parts=(first, *axis.parts[1:]))
        return Axis(axis.name, stop - start)

    def without(self, axis: int) -> Region:
        """Drops a dimension of size 1."""
        assert self.axes[axis].size == 1
        return replace(self, axes=self.axes[:axis] + self.axes[axis + 1 :])

    def padded(self, axis: int, before: int, after: int) -> Region:
        """Pads one dimension with zeros: positions that no nest fills."""
        old = self.axes[axis]
        outer, inner = math.prod(self.shape[:axis]), math.prod(self.shape[axis + 1 :]) * self.word
        size = before + old.size + after
        nests = project(self.nests, (outer, old.size, inner), (size * inner, inner, 1), base=before * inner)
        return replace(self, axes=(*self.axes[:axis], Axis(old.name, size), *self.axes[axis + 1 :]), nests=nests)

    def bits(self, dtype: str, name: str) -> Region:
        """The same bits read as another dtype.

        A narrower dtype appends an axis `name` (first value in the low bits); a wider one merges the last axis, which
        must have the size of exactly one element. Raises AxesError if it has not, and for concatenated floats of
        several dtypes, which have a common dtype only after conversion.
        """
        stored = sorted({nest.view for nest in self.nests} - {self.dtype})
        if self.word == 1 and stored:
            raise AxesError(f"the bits of {' and '.join(stored)} next to {self.dtype} are not those of one dtype")
        old, new = DTYPES[self.dtype].bits, DTYPES[dtype].bits
        if new > old:
            *outer, last = self.axes
            if last.size * old != new:
                raise AxesError(f"{last.size} values of {self.dtype} along `{last}` do not make one {dtype}")
            return replace(self, axes=tuple(outer), dtype=dtype, word=self.word * last.size)
        if new == old:
            views = tuple(replace(n, view=dtype) for n in self.nests) if self.word == 1 else self.nests
            return replace(self, dtype=dtype, nests=views)
        ratio = old // new
        axes = (*self.axes, Axis(name, ratio))
        if self.word > 1:  # the units of a packed word are split again
            if self.word != ratio:
                raise AxesError(f"a word of {self.word} values does not come apart into {ratio} of {dtype}")
            return replace(self, axes=axes, dtype=dtype, word=1)
        nests = tuple(
            replace(
                n,
                view=dtype,
                src=n.src * ratio,
                dst=n.dst * ratio,
                loops=(*((e, s * ratio, d * ratio) for e, s, d in n.loops), (ratio, 1, 1)),
            )
            for n in self.nests
        )
        return replace(self, axes=axes, dtype=dtype, nests=nests)


def concat(regions: Sequence[Region], axis: int, name: str) -> Region:
    """Regions concatenated along a dimension, which becomes the sum `name` of theirs."""
    first, shapes = regions[0], [region.shape for region in regions]
    for other, shape in zip(regions, shapes, strict=True):
        if (shape[:axis], shape[axis + 1 :]) != (shapes[0][:axis], shapes[0][axis + 1 :]):
            raise AxesError(f"cannot concatenate {list(shapes[0])} and {list(shape)} along axis {axis}")
        if other.word != first.word or (other.dtype != first.dtype and not {other.dtype, first.dtype} <= FLOATS):
            raise AxesError(f"cannot concatenate {first.dtype} and {other.dtype}")
    outer, inner = math.prod(shapes[0][:axis]), math.prod(shapes[0][axis + 1 :]) * first.word
    total = sum(shape[axis] for shape in shapes)
    nests: list[Nest] = []
    at = 0
    for region, shape in zip(regions, shapes, strict=True):
        nests += project(region.nests, (outer, shape[axis] * inner), (total * inner, 1), base=at * inner)
        at += shape[axis]
    parts = tuple(region.axes[axis] for region in regions)
    joined = Axis(name, total, parts, sum=True)
    dtype = joined_dtype([region.dtype for region in regions])
    axes = (*first.axes[:axis], joined, *first.axes[axis + 1 :])
    return Region(axes, dtype, tuple(nests), first.word)


def joined_dtype(dtypes: Sequence[str]) -> str:
    """The dtype of concatenated arrays: for different floats one that represents the values of each."""
    widest = max(dtypes, key=lambda name: DTYPES[name].bits)
    mixed = len(set(dtypes)) > 1 and widest != "float64"
    return "float32" if mixed else widest  # represents all values of float16 and bfloat16


@cache
def takes_bits(dtype: str) -> frozenset[str]:
    """The dtypes whose bits may be read as another dtype: all except bool; for float8 or float4 only itself and
    integers.

    A wider float, or another one of that width, holds values and not the bits of these.
    """
    narrow = DTYPES[dtype].kind == "float" and dtype not in FLOATS
    kinds = ("int", "uint") if narrow else ("int", "uint", "float")
    return frozenset(name for name, of in DTYPES.items() if of.kind in kinds) | {dtype}
