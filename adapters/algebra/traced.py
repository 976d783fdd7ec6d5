"""Adapters that are functions of arrays: run on headers, each step becomes a planned copy, and no tensor is read.

The function is plain numpy code: it returns arrays for arrays, and expressions for traced tensors, which implement
numpy's functions (NEP 18, `__array_function__`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, SupportsIndex, cast

from bringup.adapters.algebra.expr import Expr
from bringup.adapters.algebra.region import Region, concat, joined_dtype
from bringup.adapters.algebra.scope import Scope
from bringup.adapters.algebra.values import ValueNode
from bringup.graphs.core.axes import Axis, sized
from bringup.spec import DTYPES, Shape

if TYPE_CHECKING:
    import numpy as np

    Dtype = np.dtype[Any]
else:
    Dtype = Any


@dataclass(frozen=True, eq=False)
class Step(Expr):
    """A region computed from regions by a step of the function."""

    parts: tuple[Expr, ...]
    run: Callable[..., Region]

    def inputs(self) -> tuple[Expr, ...]:
        return self.parts

    def region(self, scope: Scope) -> Region:
        return self.run(*(part.region(scope) for part in self.parts))


@dataclass(frozen=True, eq=False)
class Traced:
    """A tensor of which only the header is known, with numpy's methods that move elements. `name` is its dtype's.

    Functions that compute values raise TypeError: use `compute` for them.
    """

    expr: Expr
    shape: Shape
    name: str

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def dtype(self) -> Dtype:
        from bringup.adapters.checkpoints.arrays import numpy_dtype

        return numpy_dtype(self.name)

    @property
    def T(self) -> Traced:
        return self.transpose()

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self) -> Iterator[Traced]:
        return (self[index] for index in range(len(self)))

    def transpose(self, *axes: Any) -> Traced:
        """As numpy's; without arguments the axes in reverse."""
        order = [axis % self.ndim for axis in _numbers(axes)] or list(range(self.ndim))[::-1]
        if sorted(order) != list(range(self.ndim)):
            raise ValueError(f"{order} is not a permutation of {self.ndim} axes")

        def run(region: Region) -> Region:
            before = tuple(Axis(f"d{k}", size) for k, size in enumerate(region.shape))
            return plain_region(region.rearrange(before, tuple(before[k] for k in order)))

        return self._moved(run, [self.shape[k] for k in order])

    def swapaxes(self, one: int, other: int) -> Traced:
        order = list(range(self.ndim))
        order[one], order[other] = order[other], order[one]
        return self.transpose(order)

    def reshape(self, *shape: Any) -> Traced:
        """As numpy's, in row-major order; one size may be -1."""
        sizes = _numbers(shape)
        if sizes.count(-1) == 1 and (rest := -math.prod(sizes)) and self.size % rest == 0:
            sizes[sizes.index(-1)] = self.size // rest
        if math.prod(sizes) != self.size or min(sizes, default=1) < 1:
            raise ValueError(f"{list(self.shape)} has no shape {sizes}")
        return self._moved(lambda region: plain_region(region, sizes), sizes)

    def copy(self, *_: Any, **__: Any) -> Traced:
        """The tensor itself: every result of a traced function is copied to memory of its own."""
        return self

    def ravel(self) -> Traced:
        return self.reshape(-1)

    def view(self, dtype: Any) -> Traced:
        """The same bits as another dtype, by bringup's name or numpy's; the last axis changes its length.

        Raises TypeError for a dtype that no checkpoint has, ValueError if the last axis has incomplete values.
        """
        name = dtype if isinstance(dtype, str) and dtype in DTYPES else Traced._name(dtype)
        old, new = DTYPES[self.name].bits, DTYPES[name].bits
        last = self.shape[-1] * old
        if last % new:
            raise ValueError(f"{self.shape[-1]} values of {self.name} do not form whole values of {name}")
        shape = (*self.shape[:-1], last // new)

        def run(region: Region) -> Region:
            if new > old:
                region = plain_region(region, (*shape, new // old))
            return plain_region(region.bits(name, ""), shape)

        return self._moved(run, shape, name)

    def _moved(self, run: Callable[[Region], Region], shape: Sequence[int], name: str = "") -> Traced:
        return Traced(Step((self.expr,), run), tuple(shape), name or self.name)

    @staticmethod
    def _name(dtype: Any) -> str:
        import numpy as np

        found = np.dtype(dtype)
        if found.name not in DTYPES or not found.isnative:
            raise TypeError(f"a traced tensor has no view as `{dtype}`: no checkpoint has that dtype")
        return found.name

    def __getitem__(self, key: Any) -> Traced:
        keys: list[Any] = list(cast("tuple[Any, ...]", key)) if isinstance(key, tuple) else [key]
        if Ellipsis in keys:
            at = keys.index(Ellipsis)
            keys[at : at + 1] = [slice(None)] * (self.ndim - len(keys) + 1)
        if len(keys) > self.ndim:
            raise IndexError(f"{len(keys)} indices for {self.ndim} axes")
        found = self
        for axis in reversed(range(len(keys))):
            found = found.cut(axis, keys[axis])
        return found

    def cut(self, axis: int, key: Any) -> Traced:
        """One index of an axis, which is removed; or every n-th index of a range."""
        size = self.shape[axis]
        if not isinstance(key, slice):
            if not isinstance(key, SupportsIndex):
                raise TypeError(f"a traced tensor supports integers and ranges as indices, not {type(key).__name__}")
            index = key.__index__()
            if not -size <= index < size:
                raise IndexError(f"index {index} of an axis of {size}")
            at = index % size
            shape = (*self.shape[:axis], *self.shape[axis + 1 :])
            return self._moved(lambda region: region.window(axis, at, at + 1).without(axis), shape)
        start, stop, step = key.indices(size)
        if step > 1:
            return self._every(axis, start, stop, step)
        if step < 1 or start >= stop:
            raise ValueError(f"the range {start}:{stop}:{step} of an axis of {size} is empty, or has a negative step")
        shape = (*self.shape[:axis], stop - start, *self.shape[axis + 1 :])
        return self._moved(lambda region: plain_region(region.window(axis, start, stop)), shape)

    def _every(self, axis: int, start: int, stop: int, step: int) -> Traced:
        count = len(range(start, stop, step))
        if start % step + count * step > self.shape[axis] + step - 1 or self.shape[axis] % step:
            raise ValueError(f"every {step}th of {self.shape[axis]}: the axis is not a multiple of the step")
        apart = self.reshape((*self.shape[:axis], -1, step, *self.shape[axis + 1 :]))
        every = apart.cut(axis + 1, start % step)
        return every.cut(axis, slice(start // step, start // step + count))

    def __array__(self, *_: Any, **__: Any) -> Any:
        help = "write x.copy() for np.array(x), np.from_dlpack(x) and np.ascontiguousarray(x), and `compute` for values"
        raise TypeError(f"a traced tensor has no values: {help}")

    __dlpack__ = __dlpack_device__ = __array__

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        known = FUNCTIONS.get(function.__name__)
        if known is None:
            raise TypeError(f"numpy's `{function.__name__}` is not one of {', '.join(FUNCTIONS)}: use `compute`")
        return known(*args, **kwargs)

    __array_ufunc__ = None


def _numbers(given: tuple[Any, ...]) -> list[int]:
    """Numbers that are passed one by one, or as one sequence."""
    alone = len(given) == 1 and isinstance(given[0], Sequence)
    return [int(number) for number in cast("Sequence[Any]", given[0] if alone else given)]


def plain_region(region: Region, shape: Sequence[int] | None = None) -> Region:
    """A region without names of axes, in its own shape or another one with as many elements."""
    return replace(region, axes=tuple(Axis("", size) for size in (region.shape if shape is None else shape)))


def _concatenate(arrays: Sequence[Traced], axis: int = 0) -> Traced:
    first, at = arrays[0], axis % arrays[0].ndim
    shape = list(first.shape)
    shape[at] = sum(array.shape[at] for array in arrays)
    parts = tuple(array.expr for array in arrays)
    name = joined_dtype([array.name for array in arrays])
    return Traced(Step(parts, lambda *regions: plain_region(concat(regions, at, ""))), tuple(shape), name)


def _stack(arrays: Sequence[Traced], axis: int = 0) -> Traced:
    at = axis % (arrays[0].ndim + 1)
    return _concatenate([a.reshape((*a.shape[:at], 1, *a.shape[at:])) for a in arrays], at)


def _split(array: Traced, parts: int | Sequence[int], axis: int = 0) -> list[Traced]:
    at = axis % array.ndim
    size = array.shape[at]
    if isinstance(parts, int):
        if size % parts:
            raise ValueError(f"an axis of {size} does not make {parts} equal parts")
        ends = [size // parts * k for k in range(parts + 1)]
    else:
        ends = [0, *parts, size]
    return [array.cut(at, slice(start, stop)) for start, stop in pairwise(ends)]


def _moveaxis(array: Traced, source: int, destination: int) -> Traced:
    order = list(range(array.ndim))
    order.insert(destination % array.ndim, order.pop(source % array.ndim))
    return array.transpose(order)


def _transpose(array: Traced, axes: Sequence[int] = ()) -> Traced:
    return array.transpose(*axes or ())


# numpy's functions that only move elements, by their names.
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "concatenate": _concatenate,
    "copy": Traced.copy,
    "moveaxis": _moveaxis,
    "ravel": Traced.ravel,
    "reshape": Traced.reshape,
    "split": _split,
    "stack": _stack,
    "swapaxes": Traced.swapaxes,
    "transpose": _transpose,
}


def compute(
    run: Callable[..., Any],
    *arrays: Any,
    shape: Sequence[int],
    dtype: str = "float32",
    exact: bool = False,
    inverse: Callable[..., tuple[Any, ...]] | None = None,
) -> Any:
    """`run(*arrays)`, whose result has this shape and dtype: for computations with numpy in traced functions.

    `exact` and `inverse` are as those of `fn`. Raises TypeError for a mixture of traced tensors and arrays.
    """
    if not any(isinstance(array, Traced) for array in arrays):
        return run(*arrays)
    for array in arrays:
        if not isinstance(array, Traced):
            message = f"`compute` accepts tensors of the checkpoint, not a {type(array).__name__} with them"
            raise TypeError(f"{message}: let the function make that by itself")
    names = [f"d{k}" for k in range(len(shape))]
    sizes = dict(zip(names, shape, strict=True))
    parts = (cast("Traced", array).expr for array in arrays)
    axes = sized(" ".join(names), sizes)
    name = getattr(run, "__name__", "function")
    value = ValueNode(name, tuple(parts), lambda _: (axes, dtype), run, exact, inverse)
    return Traced(Step((value,), plain_region), tuple(shape), dtype)
