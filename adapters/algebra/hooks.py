"""Functions of complete tensors between a checkpoint and the rules, or between the rules and the parameters.

A hook may compute several tensors from several: their bytes are one computed value with a part for each, so that an
inverse gets all of them at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from bringup.adapters.algebra.expr import Expr
from bringup.adapters.algebra.region import Region
from bringup.adapters.algebra.results import checked, refused, site_of
from bringup.adapters.algebra.scope import Scope
from bringup.adapters.algebra.values import ValueNode
from bringup.graphs.core.axes import Axes, AxesError, Axis, shape_of, show, sized
from bringup.spec import DTYPES, Shape, Site

if TYPE_CHECKING:
    import numpy as np

    Run = Callable[..., Any]
    Array = np.ndarray
else:
    Run = Callable[..., Any]
    Array = Any


@dataclass(frozen=True, eq=False)
class Hook:
    """`run(*arrays)` returns an array, or a tuple with one array for each of `outputs`; see `hook`.

    `read` are the patterns of `outputs` that a rule has read since planning began; `site` is the call of `with_`.
    """

    run: Run
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    dtypes: Mapping[str, str]
    exact: bool
    inverse: Run | None
    sizes: Mapping[str, int]
    parts: tuple[Expr, ...] = field(default=())
    read: set[str] = field(default_factory=set[str])
    site: Site | None = None

    def output(self, pattern: str) -> Expr:
        """The expression of one of its results."""
        return HookOutput(self, list(self.outputs).index(pattern), self.parts)


@dataclass(frozen=True)
class HookOutput(Expr):
    """One of the results of a hook."""

    hook: Hook
    index: int
    parts: tuple[Expr, ...]

    def inputs(self) -> tuple[Expr, ...]:
        return self.parts

    def region(self, scope: Scope) -> Region:
        hook, sizes = self.hook, {**scope.sizes, **self.hook.sizes}
        name = getattr(hook.run, "__name__", "function")
        given = [(sized(axes, sizes), hook.dtypes[pattern]) for pattern, axes in hook.outputs.items()]
        for axes, _ in given:
            if 0 in shape_of(axes):
                raise AxesError(f"`{name}` has the result `{show(axes)}`: state the sizes of its axes")
        if len(given) == 1:
            alone = Alone(name, hook.run, shape_of(given[0][0]), given[0][1])
            value = ValueNode(name, self.parts, lambda _: given[0], alone, hook.exact, _alone(hook.inverse))
            return value.region(scope)
        of = tuple((shape_of(axes), dtype) for axes, dtype in given)
        nbytes = [math.prod(shape) * DTYPES[dtype].bits // 8 for shape, dtype in of]
        packed: tuple[Axes, str] = ((Axis("byte", sum(nbytes)),), "uint8")
        inverse = Unpacked(hook.inverse, of) if hook.inverse else None
        value = ValueNode(name, self.parts, lambda _: packed, Packed(name, hook.run, of), hook.exact, inverse)
        start, (axes, dtype) = sum(nbytes[: self.index]), given[self.index]
        region = value.region(scope).window(0, start, start + nbytes[self.index])
        width = DTYPES[dtype].bits // 8
        flat = (Axis("element", nbytes[self.index] // width), Axis("byte", width))
        region = Region(flat, region.dtype, region.nests, region.word)
        region = region.bits(dtype, "byte") if width > 1 else region.without(1).bits(dtype, "bit")
        return Region(axes, region.dtype, region.nests, region.word)


def _several(found: Any) -> tuple[Array, ...]:
    return cast("tuple[Array, ...]", found) if isinstance(found, tuple) else (found,)


def _alone(inverse: Run | None) -> Run | None:
    return Tupled(inverse) if inverse else None


@dataclass(frozen=True)
class Tupled:
    """An inverse that may return a single array without a tuple."""

    inverse: Run

    def __call__(self, array: Array) -> tuple[Array, ...]:
        return _several(self.inverse(array))


@dataclass(frozen=True)
class Alone:
    """The only result of a function, also if it returns a tuple of one. Raises BU116 if it is not as declared."""

    name: str
    run: Run
    shape: Shape
    dtype: str

    def __call__(self, *arrays: Array) -> Array:
        found: Any = self.run(*arrays)
        several = cast("tuple[Any, ...]", found) if isinstance(found, tuple) else (found,)
        result = several[0] if len(several) == 1 else several
        return checked(self.name, result, self.shape, self.dtype, site_of(self.run))


@dataclass(frozen=True)
class Packed:
    """The bytes of several results, concatenated. Raises BU116 for another shape or dtype than declared."""

    name: str
    run: Run
    of: tuple[tuple[Shape, str], ...]

    def __call__(self, *arrays: Array) -> Array:
        import numpy as np

        found: Any = self.run(*arrays)
        site, count = site_of(self.run), len(self.of)
        results = list(cast("tuple[Any, ...]", found)) if isinstance(found, tuple | list) else [found]
        if len(results) != count:
            gave = f"{len(results)} results" if len(results) != 1 else "one result"
            raise refused(self.name, "None" if found is None else gave, f"a tuple of {count} arrays", site)
        arrays = tuple(
            checked(self.name, result, shape, dtype, site)
            for result, (shape, dtype) in zip(results, self.of, strict=True)
        )
        return np.concatenate([np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in arrays])


@dataclass(frozen=True)
class Unpacked:
    """The inverse of `Packed`: splits the bytes, and computes the inputs."""

    inverse: Run
    of: tuple[tuple[Shape, str], ...]

    def __call__(self, data: Array) -> tuple[Array, ...]:
        from bringup.adapters.checkpoints.arrays import numpy_dtype

        arrays: list[Array] = []
        at = 0
        for shape, dtype in self.of:
            nbytes = math.prod(shape) * DTYPES[dtype].bits // 8
            arrays.append(data[at : at + nbytes].copy().view(numpy_dtype(dtype)).reshape(shape))
            at += nbytes
        return _several(self.inverse(*arrays))


def hook(
    run: Run,
    *,
    inputs: Mapping[str, str],
    outputs: Mapping[str, str],
    dtype: str | Mapping[str, str] = "float32",
    exact: bool = False,
    inverse: Run | None = None,
    **sizes: int,
) -> Hook:
    """A function from several tensors to several, for `with_(before=…)` and `with_(after=…)`.

    `inputs` and `outputs` map names, with the variables of patterns, to axes: `{"layers.{L}.w": "out in"}`.
    `run` gets the arrays in order, and returns one, or a tuple. `sizes` are those of axes that the parameter does not
    have. `exact`: no information is lost; `inverse` computes the inputs from the results, for `export`. Raises
    ValueError without inputs or results, or if one of several results has less than 8 bits a value.
    """
    dtypes = dict.fromkeys(outputs, dtype) if isinstance(dtype, str) else dict(dtype)
    if not inputs or not outputs or dtypes.keys() != outputs.keys():
        raise ValueError("a hook needs input tensors, and the axes and the dtype of each result")
    if len(outputs) > 1 and any(DTYPES[name].bits < 8 for name in dtypes.values()):
        raise ValueError("of several results, each has 8 bits a value, or more")
    return Hook(run, dict(inputs), dict(outputs), dtypes, exact, inverse, sizes)
