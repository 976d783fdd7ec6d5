"""Drawn: an operation whose values are drawn repeatedly. Draw: one such draw, and its result in float64."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
import torch

from bringup.compile.program.torch_arrays import to_tensor
from bringup.compile.schedule.graph.op_graph import Argument, Kind, OpGraph, View
from tests.kernels.graphs import NUMPY, Function
from tests.llvm.native import separate

Random = np.random.Generator
FLOATS = ("float32", "float32", "bfloat16", "float16")
# What numbers are like: some rows zero; below the normal numbers; of many sizes; zeros, infinities and NaN among them.
DISTRIBUTIONS = ("plain", "plain", "zeros", "tiny", "wide", "special")
FINITE = DISTRIBUTIONS[:-1]
TINY = {"float16": 1e-6, "float64": 1e-310}
SPECIAL = (0.0, -0.0, float("inf"), float("-inf"), float("nan"), 1.0, -1.0, 1e-30, 3e4)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a buffer has by float64. It may be `steps` roundings to float32 off, each relative to `size`.

    Without steps a result is what float64 gives, rounded once. `rows`: those that are compared, where not all are.
    """

    numbers: np.ndarray
    steps: float = 0.0
    size: np.ndarray | float = 0.0
    rows: int | None = None


@dataclass(frozen=True, slots=True)
class Draw:
    """A function, what its buffers start with, and what those named have after it."""

    graph: OpGraph
    arrays: Mapping[str, np.ndarray]
    wanted: Mapping[str, Wanted]


@dataclass(frozen=True, slots=True)
class Form:
    """An operation of some dtypes and options; each draw has other numbers, and maybe other sizes."""

    name: str
    draw: Callable[[Random, str], Draw]


def floats(random: Random, shape: Sequence[int], distribution: str, dtype: str) -> np.ndarray:
    """Random numbers of a distribution."""
    found = np.asarray(random.standard_normal(tuple(shape))) * 2.0 ** random.integers(-2, 4)
    match distribution:
        case "zeros" if found.ndim:
            found[random.random(found.shape[0]) < 0.5] = 0.0
            found *= random.choice([1.0, -1.0])
        case "tiny":
            found = found * TINY.get(dtype, 1e-40)
        case "wide":
            found = found * 2.0 ** random.integers(-8, 5, found.shape)
        case "special":
            found = np.where(random.random(found.shape) < 0.2, random.choice(SPECIAL, found.shape), found)
        case _:
            pass
    with np.errstate(all="ignore"):
        return np.asarray(found).astype(np.float32 if dtype != "float64" else np.float64).astype(NUMPY[dtype])


def whole_numbers(random: Random, shape: Sequence[int], dtype: str) -> np.ndarray:
    """Small ones, and one in five as large as the dtype has them."""
    least = 0 if dtype == "uint8" else -(2 ** (8 * np.dtype(dtype).itemsize - 1))
    most = 255 if dtype == "uint8" else -least - 1
    wide = random.integers(least, most, tuple(shape), endpoint=True)
    return np.where(random.random(tuple(shape)) < 0.2, wide, random.integers(max(least, -9), 10, tuple(shape)))


@dataclass
class Against:
    """What a difference is relative to: the number `itself`; that, or 1 where it is smaller (`one`); the sum of the
    sizes of what it is a sum of, for each result by itself (`terms`) or the largest of all (`largest`)."""

    size: str = "itself"
    steps: float = 0.0
    least: float = 0.0  # sizes below it count as it: a dtype's smallest normal number, where roundings are absolute
    of: Mapping[str, str] = field(default_factory=dict[str, str])  # the size that another result has
    times: str = ""  # the buffer by which something is multiplied after its rounding: `least` grows with it


class Drawn(Function):
    """A function that remembers how its numbers are made."""

    def __init__(self, random: Random) -> None:
        super().__init__()
        self.random = random
        self._makers: dict[str, Callable[[Random, str], np.ndarray]] = {}

    def numbers(
        self, name: str, make: Callable[[Random, str], np.ndarray], dtype: str, kind: Kind = "temporary"
    ) -> View:
        """A buffer of what `make` gives for a distribution."""
        self._makers[name] = make
        return self.array(name, np.asarray(make(self.random, "plain")).astype(NUMPY[dtype]), dtype, kind)

    def floats(
        self,
        name: str,
        shape: Sequence[int],
        dtype: str,
        *,
        distributions: Sequence[str] = DISTRIBUTIONS,
        kind: Kind = "temporary",
    ) -> View:
        """Floats of the distributions named, otherwise plain ones."""
        return self.numbers(
            name, lambda r, m: floats(r, shape, m if m in distributions else "plain", dtype), dtype, kind
        )

    def spread(
        self, name: str, shape: Sequence[int], dtype: str, *, distributions: Sequence[str] = DISTRIBUTIONS
    ) -> View:
        """As `floats`, or whole numbers; the view has its axes in another order, gaps between rows, or one row."""
        r, wide = self.random, list(shape)
        order, gaps = r.permutation(len(wide)), [int(r.choice([0, 0, 2])) for _ in wide]
        if r.random() < 0.5:
            order, gaps = np.arange(len(wide)), [0] * len(wide)
        held = [wide[axis] + gap for axis, gap in zip(order, gaps, strict=True)]
        if "float" in dtype:
            self.floats(name, held, dtype, distributions=distributions)
        elif dtype == "bool":
            self.numbers(name, lambda r, _: r.random(held) < 0.5, dtype)
        else:
            self.numbers(name, lambda r, _: whole_numbers(r, held, dtype), dtype)
        steps = [prod(held[n + 1 :]) for n in range(len(held))]
        strides = [0] * len(wide)
        for place, axis in enumerate(order):
            strides[axis] = steps[place]
        offset = sum(int(r.integers(gap + 1)) * step for gap, step in zip(gaps, steps, strict=True))
        return View(name, tuple(wide), tuple(strides), offset)

    def indices(self, name: str, shape: Sequence[int], size: int, *, negative: bool = False) -> View:
        """Places on an axis of a size."""
        return self.numbers(name, lambda r, _: r.integers(-size if negative else 0, size, tuple(shape)), "int64")

    def form(self, name: str, against: Against) -> Form:
        """Each draw of numbers is of the same graph."""
        graph = separate(self.graph(*(name for node in self.nodes for name in node.outputs)))

        def draw(random: Random, distribution: str) -> Draw:
            self.arrays = {
                key: np.asarray(make(random, distribution)).astype(NUMPY[self.buffers[key].dtype])
                for key, make in self._makers.items()
            }
            with np.errstate(all="ignore"):
                return Draw(graph, self.started(), self._wanted(against))

        return Form(name, draw)

    def _wanted(self, against: Against) -> dict[str, Wanted]:
        expected = self.expected()
        least = (
            against.least * (1.0 + np.abs(self.arrays[against.times].astype(float))) if against.times else against.least
        )
        sizes = self._sizes() if {against.size, *against.of.values()} & {"terms", "largest"} else expected
        found: dict[str, Wanted] = {}
        for name in (*(name for node in self.nodes for name in node.outputs), *self._updated()):
            numbers = expected[name]
            size: np.ndarray | float = np.abs(numbers)
            match against.of.get(name, against.size):
                case "one":
                    size = np.maximum(1.0, size)
                case "terms":
                    size = np.maximum(size, np.abs(sizes[name]))
                case "largest":
                    size = float(np.nanmax([*np.abs(sizes[name][np.isfinite(sizes[name])]).ravel(), 1.0]))
                case _:
                    pass
            found[name] = Wanted(numbers, against.steps, np.maximum(size, least))
        return found

    def _updated(self) -> list[str]:
        return [name for node in self.nodes for name in node.updates]

    def _sizes(self) -> dict[str, np.ndarray]:
        """The results for the sizes of all numbers: a sum is as far off as its terms are large."""
        own, self.arrays = self.arrays, {n: np.abs(a) if "float" in a.dtype.name else a for n, a in self.arrays.items()}
        sizes, self.arrays = self.expected(), own
        return sizes


OVERLOADS: Mapping[str, str] = {
    **dict.fromkeys(("add", "sub", "mul", "div", "fmod", "remainder", "gt", "ge", "lt", "le", "eq", "ne"), "Tensor"),
    **dict.fromkeys(("bitwise_and", "bitwise_or", "bitwise_xor"), "Tensor"),
    **{"pow": "Tensor_Tensor", "where": "self", "masked_fill": "Scalar", "index": "Tensor", "gelu": "default"},
    **{"sum": "dim_IntList", "mean": "dim", "any": "dim", "all": "dim", "prod": "dim_int", "var": "correction"},
    **{"max": "dim", "min": "dim", "sort": "stable", "scatter": "src", "scatter_reduce": "two", "to": "dtype"},
}


def torch_node(f: Drawn, name: str, values: Sequence[Argument]) -> None:
    """A node of one of torch's operators, with defaults for what is not given; its results are y0, y1, …"""
    short, _, overload = name.partition(".")
    operator = getattr(getattr(torch.ops.aten, short), overload or OVERLOADS.get(name, "default"))
    infos = operator._schema.arguments
    given = [*values, *(info.default_value for info in infos[len(values) :])]

    def real(value: Any) -> Any:
        if isinstance(value, View):
            return to_tensor(f.arrays[value.buffer]).as_strided(value.shape, value.strides, value.offset)
        if isinstance(value, tuple):
            return [real(item) for item in value]
        return getattr(torch, value.name) if hasattr(value, "name") else value

    keyed = {info.name: real(value) for info, value in zip(infos, given, strict=True) if info.kwarg_only}
    out = operator(*(real(v) for info, v in zip(infos, given, strict=True) if not info.kwarg_only), **keyed)
    listed = [out] if isinstance(out, torch.Tensor) else list(out)
    shapes = {f"y{n}": (tuple(t.shape), str(t.dtype).removeprefix("torch.")) for n, t in enumerate(listed)}
    f.node(f"aten.{operator.__name__}", shapes, **{i.name: v for i, v in zip(infos, given, strict=True)})
