"""Value nodes, for what movements cannot express. Each derives its shape and dtype, and declares whether it is exact.

Nothing here runs during planning; `run` is called with arrays when the plan is materialised.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bringup.adapters.algebra.computed import Computed
from bringup.adapters.algebra.expr import Expr
from bringup.adapters.algebra.region import Region
from bringup.adapters.algebra.scope import Scope
from bringup.graphs.core.axes import Axes, AxesError, Axis, show, sized
from bringup.spec import DTYPES, FLOATS, Shape

if TYPE_CHECKING:
    import numpy as np

    Run = Callable[..., np.ndarray]
else:
    Run = Callable[..., Any]


# The dtypes that are multiplied by a scale. Unsigned bytes are excluded: they are packed values or renamed floats.
PAYLOADS = frozenset({"float8_e4m3fn", "float8_e5m2", "float4_e2m1fn", "int8", "int4"})
SCALES = FLOATS | {"float8_e8m0fnu", "float8_e4m3fn"}  # e4m3: the scale of 16 values in NVFP4
ANY_FLOAT = frozenset(name for name, dtype in DTYPES.items() if dtype.kind == "float")


@dataclass(frozen=True)
class ValueNode(Expr):
    """An expression whose value is computed from other expressions' arrays; `block` as in `Computed`.

    `accepts` are the accepted dtypes, one set for each part; a part without a set may have any. `grain`: the number of
    indices of each dimension of the result that depend on one index of each part. `by_element`: each element depends on
    the same element of every part.
    """

    name: str
    parts: tuple[Expr, ...]
    law: Callable[[tuple[Region, ...]], tuple[Axes, str]]
    run: Run
    exact: bool
    inverse: Callable[..., tuple[np.ndarray, ...]] | None = None
    block: Shape = ()
    accepts: tuple[Collection[str], ...] = ()
    grain: tuple[Shape, ...] = ()
    by_element: bool = False

    def inputs(self) -> tuple[Expr, ...]:
        return self.parts

    def region(self, scope: Scope) -> Region:
        inputs = tuple(part.region(scope) for part in self.parts)
        for part, accepts in zip(inputs, self.accepts, strict=False):
            scope.check_dtypes(part, accepts, self.name)
        axes, dtype = self.law(inputs)
        shape = tuple(axis.size for axis in axes)
        sizes = tuple((1,) * len(shape) for _ in inputs) if self.by_element else self.grain
        grains = tuple(tuple((size, 1) for size in part) for part in sizes)
        computed = Computed(self.name, inputs, shape, dtype, self.run, self.exact, self.inverse, self.block, grains)
        return scope.whole(computed, axes)


def cast(x: Expr, dtype: str) -> Expr:
    """Another float dtype, rounded to nearest even."""

    def run(array: np.ndarray) -> np.ndarray:
        from bringup.adapters.checkpoints.arrays import numpy_dtype

        return array.astype(numpy_dtype(dtype))

    name = f"cast to {dtype}"
    return ValueNode(
        name, (x,), lambda regions: (regions[0].axes, dtype), run, exact=False, accepts=(ANY_FLOAT,), by_element=True
    )


def scale(x: Expr, factor: float) -> Expr:
    """Every element times a constant; exact only for powers of two."""

    def run(array: np.ndarray) -> np.ndarray:
        return (array.astype("float32") * factor).astype(array.dtype)

    def undo(array: np.ndarray) -> tuple[np.ndarray, ...]:
        return ((array.astype("float32") / factor).astype(array.dtype),)

    exact = factor > 0 and math.frexp(factor)[0] == 0.5
    name, inverse = f"scale by {factor:g}", undo if exact else None
    return ValueNode(
        name, (x,), lambda regions: (regions[0].axes, regions[0].dtype), run, exact, inverse, accepts=(FLOATS,),
        by_element=True,
    )  # fmt: skip


def reciprocal(x: Expr) -> Expr:
    """1 / x in float32, for checkpoints that store the factor by which values were multiplied instead of the scale."""

    def run(array: np.ndarray) -> np.ndarray:
        return 1 / array.astype("float32")

    return ValueNode(
        "reciprocal", (x,), lambda regions: (regions[0].axes, "float32"), run, exact=False, accepts=(FLOATS,),
        by_element=True,
    )  # fmt: skip


def shift(x: Expr, by: float) -> Expr:
    """Every element plus a constant, computed in float32: `shift(S("norm.weight"), -1)` for norms stored as 1 + w."""

    def run(array: np.ndarray) -> np.ndarray:
        return (array.astype("float32") + by).astype(array.dtype)

    name = f"shift by {by:g}"
    return ValueNode(
        name, (x,), lambda regions: (regions[0].axes, regions[0].dtype), run, exact=False, accepts=(FLOATS,),
        by_element=True,
    )  # fmt: skip


def log(x: Expr) -> Expr:
    """The natural logarithm of every element, in float32."""

    def run(array: np.ndarray) -> np.ndarray:
        import numpy as np

        return np.log(array.astype("float32")).astype(array.dtype)

    return ValueNode(
        "log", (x,), lambda regions: (regions[0].axes, regions[0].dtype), run, exact=False, accepts=(FLOATS,),
        by_element=True,
    )  # fmt: skip


def dequant(
    payload: Expr, scales: Expr, block: tuple[int, ...], dtype: str = "float32", *, accepts: Collection[str] = PAYLOADS
) -> Expr:
    """payload · scale, with one scale for each block of `block` elements (the last block of an axis may be shorter).

    Payloads have one of the dtypes in `accepts`: by default float8, float4 or signed integers, but not wider floats,
    because these are already dequantised. Scales are float64 to float16, bfloat16, e4m3, or e8m0 exponents (OCP
    Microscaling Formats specification 1.0, section 5.4).
    """

    def law(regions: tuple[Region, ...]) -> tuple[Axes, str]:
        value, by = regions
        if len(block) != len(value.shape):
            raise AxesError(f"block {block} does not have the {len(value.shape)} dimensions of `{show(value.axes)}`")
        wanted = tuple(-(-size // n) for size, n in zip(value.shape, block, strict=True))
        if by.shape != wanted:
            raise AxesError(f"scales have shape {list(by.shape)}; blocks of {list(block)} need {list(wanted)}")
        return value.axes, dtype

    def run(array: np.ndarray, by: np.ndarray) -> np.ndarray:
        from bringup.adapters.checkpoints.arrays import numpy_dtype

        factors = by.astype("float32")
        for axis, n in enumerate(block):
            factors = factors.repeat(n, axis).take(range(array.shape[axis]), axis)
        return (array.astype("float32") * factors).astype(numpy_dtype(dtype))

    name = f"dequantise by blocks of {list(block)}"
    grain = (1,) * len(block), block
    return ValueNode(
        name, (payload, scales), law, run, exact=False, block=block, accepts=(accepts, SCALES), grain=grain
    )


def quant(x: Expr, block: tuple[int, ...], dtype: str = "float8_e4m3fn") -> tuple[Expr, Expr]:
    """Two outputs: payload in `dtype`, and a float32 scale for each block: its largest magnitude / the dtype's."""

    def wide(array: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        import ml_dtypes
        import numpy as np

        from bringup.adapters.checkpoints.arrays import numpy_dtype

        grid = [(-(-size // n), n) for size, n in zip(array.shape, block, strict=True)]
        padded = np.zeros([count * n for count, n in grid], np.float32)
        padded[tuple(slice(0, size) for size in array.shape)] = array
        blocks = padded.reshape([size for pair in grid for size in pair])
        inner = tuple(range(1, 2 * len(grid), 2))
        largest = np.maximum.reduce(np.abs(blocks), axis=inner)
        top = ml_dtypes.finfo(numpy_dtype(dtype)).max  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]  missing in its stubs
        scales = largest / float(top)  # pyright: ignore[reportUnknownArgumentType]
        scales = np.where(scales == 0, 1, scales).astype(np.float32)
        by = np.expand_dims(scales, inner)
        payload = (blocks / by).reshape(padded.shape)[tuple(slice(0, size) for size in array.shape)]
        return payload.astype(numpy_dtype(dtype)), scales

    def scale_axes(regions: tuple[Region, ...]) -> tuple[Axes, str]:
        axes = regions[0].axes
        return tuple(Axis(a.name, -(-a.size // n)) for a, n in zip(axes, block, strict=True)), "float32"

    name = f"quantise by blocks of {list(block)}"

    def payload(array: np.ndarray) -> np.ndarray:
        return wide(array)[0]

    def scales(array: np.ndarray) -> np.ndarray:
        return wide(array)[1]

    return (
        ValueNode(name, (x,), lambda regions: (regions[0].axes, dtype), payload, exact=False, accepts=(FLOATS,)),
        ValueNode(f"{name}: scales", (x,), scale_axes, scales, exact=False, accepts=(FLOATS,)),
    )


def fn(
    run: Run,
    *inputs: Expr,
    axes: str,
    dtype: str,
    exact: bool = False,
    inverse: Callable[..., tuple[np.ndarray, ...]] | None = None,
    accepts: Sequence[Collection[str]] = (),
    **sizes: int,
) -> Expr:
    """Any function of arrays, with the axes and dtype of its result declared (and checked when run).

    `accepts` are the dtypes that the function accepts, one set for each input; without it, any.
    """
    law: Mapping[str, int] = sizes
    name = getattr(run, "__name__", "function")
    return ValueNode(name, inputs, lambda _: (sized(axes, law), dtype), run, exact, inverse, accepts=tuple(accepts))
