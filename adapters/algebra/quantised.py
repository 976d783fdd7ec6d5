"""A quantised matrix as a value that rules can move like any tensor.

A scheme defines the arrays of the matrix's `Form` as movements of the checkpoint's tensors; the value computes the
matrix from them. Packed weights use the arrays instead of the value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from bringup.adapters.algebra.computed import Computed
from bringup.adapters.algebra.expr import Expr
from bringup.adapters.algebra.region import Region
from bringup.adapters.algebra.scope import Scope
from bringup.adapters.algebra.values import SCALES
from bringup.diagnostics import fail
from bringup.graphs.core.axes import AxesError, Axis, show
from bringup.graphs.core.form import Form, FormPart, count
from bringup.spec import DTYPES, Shape

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class QuantisedMatrix(Expr):
    """The matrix [rows, columns], float32, of the arrays in `parts`, by the names of `form.parts()`.

    `scheme` is its name in messages. Codes have the shape of the matrix, one element for each code (of a sub-byte dtype
    if they are packed), scales the shape of its blocks. `index` has one dimension, columns. Raises AxesError if the
    shape of a part does not match that of the codes.
    """

    scheme: str
    form: Form
    parts: Mapping[str, Expr]

    def inputs(self) -> tuple[Expr, ...]:
        return tuple(self.parts[part.name] for part in self.form.parts())

    def region(self, scope: Scope) -> Region:
        parts = tuple(self.form.parts())
        regions = tuple(self.parts[part.name].region(scope) for part in parts)
        codes = regions[0]
        regions = tuple(_shaped(part, region, codes) for part, region in zip(parts, regions, strict=True))
        for part, region in zip(parts, regions, strict=True):
            if not scope.misfits:
                _check_shape(part, region, codes)
            scope.check_dtypes(region, _accepted_dtypes(part), f"{self.scheme}: {part.name}")
        if self.form.index:
            index, check = regions[-1], InRange(self.scheme, regions[1].shape[-1], self.form.block[1])
            name = f"{self.scheme}: index"
            checked = Computed(
                name, (index,), index.shape, "int32", check, exact=True, inverse=_unchanged, grains=(((1, 1),),)
            )
            regions = (*regions[:-1], scope.whole(checked, index.axes))
        computed = Computed(
            f"dequantise {self.scheme}", regions, codes.shape, "float32", Dequantise(self.form), exact=False,
            block=(*(1 for _ in codes.shape[:-2]), *(size or 1 for size in self.form.block)),
            grains=_grains(self.form, len(codes.shape)),
            form=self.form,
        )  # fmt: skip
        return scope.whole(computed, codes.axes)


def _shaped(part: FormPart, region: Region, codes: Region) -> Region:
    """The region in the form's shape, if the two differ only in dimensions of 1: the order of elements is the same."""
    shape = shape_of_part(part, codes.shape)
    if region.shape == shape or without_ones(region.shape) != without_ones(shape):
        return region
    return replace(region, axes=tuple(Axis(f"d{k}", size) for k, size in enumerate(shape)))


def without_ones(shape: Shape) -> Shape:
    """The sizes of the dimensions that have more than one index."""
    return tuple(size for size in shape if size != 1)


def _check_shape(part: FormPart, region: Region, codes: Region) -> None:
    wanted = shape_of_part(part, codes.shape)
    if region.shape != wanted:
        blocks = f"blocks of {list(part.block)}" if part.name != "index" else "one a column"
        raise AxesError(
            f"{part.name} have shape {list(region.shape)}; `{show(codes.axes)}` {list(codes.shape)} with {blocks} "
            f"needs {list(wanted)}"
        )


def shape_of_part(part: FormPart, shape: Shape) -> Shape:
    """The shape of one array of a form, for a matrix of `shape`."""
    if part.name == "index":
        return shape[-1:]
    return (*shape[:-2], count(shape[-2], part.block[0]), count(shape[-1], part.block[1]))


def _accepted_dtypes(part: FormPart) -> frozenset[str]:
    """The dtypes that a part may be stored in: only the declared one for codes and zeros, any float for scales."""
    if part.name in ("codes", "zeros", "index"):
        return frozenset({part.dtype})
    return SCALES if DTYPES[part.dtype].kind == "float" else frozenset({part.dtype})


def _grains(form: Form, dimensions: int) -> tuple[tuple[tuple[int, int], ...], ...]:
    """Rows and columns of the matrix for one value of each part; () if an index assigns columns to blocks."""
    if form.index:
        return ()
    leading = tuple((1, 1) for _ in range(dimensions - 2))
    return tuple((*leading, *((size, 1 if size else 0) for size in part.block)) for part in form.parts())


@dataclass(frozen=True, slots=True)
class InRange:
    """Returns block numbers unchanged. Raises BU115 if there is no such block, or a block has too many columns.

    `size` is the largest number of columns of a block; WHOLE for any number.
    """

    scheme: str
    blocks: int
    size: int

    def __call__(self, index: np.ndarray) -> np.ndarray:
        if index.size and not 0 <= int(index.min()) <= int(index.max()) < self.blocks:
            message = (
                f"{self.scheme}: the column index has values from {index.min()} to {index.max()}, "
                f"but there are {self.blocks} groups"
            )
            raise fail("BU115", message, help="was it saved for another group size?")
        if self.size and index.size and (most := _largest_count(index)) > self.size:
            message = (
                f"{self.scheme}: the column index assigns {most} columns to one group, but `group_size` is {self.size}"
            )
            raise fail("BU115", message, help="was it saved for another group size, or another matrix?")
        return index


def _largest_count(index: np.ndarray) -> int:
    """The count of the most frequent number."""
    import numpy as np

    return int(np.bincount(index.reshape(-1)).max())


def _unchanged(index: np.ndarray) -> tuple[np.ndarray]:
    return (index,)


@dataclass(frozen=True, slots=True)
class Dequantise:
    """Dequantises a form's arrays, in the order of `Form.parts`, to float32 [rows, columns]."""

    form: Form

    def __call__(self, *arrays: np.ndarray) -> np.ndarray:
        import numpy as np

        form = self.form
        given = {part.name: (part, array) for part, array in zip(form.parts(), arrays, strict=True)}
        codes = arrays[0]
        shape = codes.shape

        def spread(name: str) -> np.ndarray:
            part, array = given[name]
            values = array.astype(np.float32)
            values = _repeat(values, -2, part.block[0], shape[-2])
            if form.index and part.block[1]:
                return values[..., arrays[-1]]
            return _repeat(values, -1, part.block[1], shape[-1])

        values = np.array(form.table, np.float32)[codes.astype(np.int64)] if form.table else codes.astype(np.float32)
        if form.offset:
            values -= np.float32(form.offset)
        if form.zero:
            values -= spread("zeros")
        scales = spread("scales")
        with np.errstate(over="ignore", invalid="ignore"):  # checks of values report infinities of a checkpoint
            values *= scales * spread("outer_scales") if form.outer else scales
        if form.minimum:
            minimums = spread("minimums")
            values += minimums * spread("outer_minimums") if form.outer else minimums
        return values


def is_stored_in_parts(value: Computed) -> bool:
    """Whether a value is a matrix that a checkpoint has quantised."""
    return value.form is not None or isinstance(value.run, Dequantise)


def _repeat(values: np.ndarray, axis: int, block: int, size: int) -> np.ndarray:
    """Repeats each value for each index of its block; the last block may be shorter. A block of 0 is broadcast."""
    return values.repeat(block, axis).take(range(size), axis) if block > 1 else values
