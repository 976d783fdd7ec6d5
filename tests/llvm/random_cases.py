"""Random operations, dtypes, shapes, options and numbers, by seed; how far kernels of the CPU are from float64.

Sizes of products, norms and attention are arguments of kernels: each case has others. Those of element-wise and general
kernels are in their code: they come from a few, so that what is compiled once serves many draws of numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
import torch

from bringup.compile.program.torch_arrays import to_tensor
from bringup.compile.schedule.graph.op_graph import Argument, View
from tests.kernels.graphs import NUMPY, Function
from tests.llvm.native import run, separate
from tests.llvm.random_graph_ops import FLOATS, Different, attention, quantised

STEP = {"float32": 2.0**-23, "bfloat16": 2.0**-8, "float16": 2.0**-11, "float64": 2.0**-52}
SPECIAL = (0.0, -0.0, float("inf"), float("-inf"), float("nan"), 1.0, -1.0, 1e-30, 3e4)
SHAPES = ((1,), (7,), (3, 5), (2, 3, 9), (1, 33), (4, 1, 6))
LANES = 16.0  # of float32 steps that a sum of terms may be off, relative to the sum of their sizes

ONE = (
    *("exp", "sin", "cos", "log", "log1p", "exp2", "expm1", "erf", "tanh", "sigmoid", "floor", "ceil", "round"),
    *("trunc", "sign", "abs", "neg", "reciprocal", "sqrt", "rsqrt", "relu", "atan", "sinh", "isnan"),
)
TWO = (
    *("add", "sub", "mul", "div", "maximum", "minimum", "fmod", "remainder", "floor_divide", "pow", "atan2"),
    *("gt", "le", "eq", "ne", "logical_xor"),
)
WHOLE = (
    *("add", "sub", "mul", "bitwise_and", "bitwise_xor", "maximum", "fmod", "remainder", "floor_divide", "lt"),
)  # fmt: skip
REDUCED = ("sum", "mean", "amax", "amin", "any", "all", "prod", "argmax", "argmin")
OVERLOADS = {
    **{name: "Tensor" for name in (*TWO, *WHOLE)},
    **{"maximum": "default", "minimum": "default", "floor_divide": "default", "pow": "Tensor_Tensor"},
    **{"atan2": "default", "logical_xor": "default"},
    **{"sum": "dim_IntList", "mean": "dim", "any": "dim", "all": "dim", "prod": "dim_int"},
}


def torch_node(f: Function, name: str, values: Sequence[Argument], *, at: int = 0) -> str:
    """A node of one of torch's operators; the name of its result `at`, and defaults for what is not given."""
    short, overload = name, OVERLOADS.get(name, "default")
    if "." in name:
        short, overload = name.split(".")
    operator = getattr(getattr(torch.ops.aten, short), overload)
    infos = operator._schema.arguments
    given = [*values, *(info.default_value for info in infos[len(values) :])]

    def real(value: Any) -> Any:
        if isinstance(value, View):
            return to_tensor(f.arrays[value.buffer]).as_strided(value.shape, value.strides, value.offset)
        return [real(item) for item in value] if isinstance(value, tuple) else value

    keyed = {info.name: real(value) for info, value in zip(infos, given, strict=True) if info.kwarg_only}
    out = operator(*(real(v) for info, v in zip(infos, given, strict=True) if not info.kwarg_only), **keyed)
    listed = [out] if isinstance(out, torch.Tensor) else list(out)
    shapes = {f"y{n}": (tuple(t.shape), str(t.dtype).removeprefix("torch.")) for n, t in enumerate(listed)}
    f.node(f"aten.{short}.{overload}", shapes, **{i.name: v for i, v in zip(infos, given, strict=True)})
    return f"y{at}"


def numbers(f: Function, name: str, shape: Sequence[int], dtype: str, *, special: bool = False) -> View:
    """Random numbers; with `special` some are zeros, infinities and NaN."""
    r = f.random
    if dtype in ("int64", "int32", "int8"):
        wide = r.integers(-(2 ** (8 * np.dtype(dtype).itemsize - 1)), 127, tuple(shape))
        own = np.where(r.random(tuple(shape)) < 0.2, wide, r.integers(-9, 10, tuple(shape)))
        return f.array(name, own.astype(dtype), dtype, "temporary")
    own = r.standard_normal(tuple(shape)) * 2.0 ** r.integers(-2, 4)
    if special:
        own = np.where(r.random(tuple(shape)) < 0.2, r.choice(SPECIAL, tuple(shape)), own)
    return f.array(name, own.astype(NUMPY[dtype]), dtype, "temporary")


def element(f: Function) -> tuple[str, str, float]:
    r, dtype = f.random, str(f.random.choice(FLOATS[1:]))
    shape = SHAPES[r.integers(len(SHAPES))]
    if r.random() < 0.4:
        name = str(r.choice(ONE))
        return name, torch_node(f, name, [numbers(f, "x", shape, dtype, special=True)]), 4.0
    if r.random() < 0.4:
        name, kind = str(r.choice(WHOLE)), str(r.choice(["int64", "int32", "int8"]))
        pair = [numbers(f, key, shape, kind) for key in "xz"]
        f.arrays["z"][f.arrays["z"] == 0] = 1  # torch ends with an error there
        return f"{name} of whole numbers", torch_node(f, name, pair), 0.0
    name = str(r.choice(TWO))
    other = shape if r.random() < 0.7 else shape[-1:]
    pair = [numbers(f, "x", shape, dtype, special=True), numbers(f, "z", other, dtype, special=True)]
    return name, torch_node(f, name, pair), 4.0


def reduction(f: Function) -> tuple[str, str, float]:
    r, dtype = f.random, str(f.random.choice(FLOATS[1:]))
    name, shape = str(r.choice(REDUCED)), SHAPES[r.integers(len(SHAPES))]
    axis = int(r.integers(len(shape)))
    x = numbers(f, "x", shape, dtype, special=name in ("amax", "amin", "any", "all", "argmax", "argmin"))
    listed: Argument = (axis,) if name in ("sum", "mean", "amax", "amin") else axis
    return name, torch_node(f, name, [x, listed, bool(r.random() < 0.5)]), 8.0


def ordered(f: Function) -> tuple[str, str, float]:
    """Lines in order, and what is summed along them: numbers with ties."""
    r = f.random
    shape = SHAPES[r.integers(len(SHAPES))]
    x, axis = f.array("x", r.integers(-4, 5, shape).astype(np.float32), "float32", "temporary"), len(shape) - 1
    match r.integers(4):
        case 0:
            return "sort", torch_node(f, "sort.stable", [x, True, axis, bool(r.random() < 0.5)], at=1), 0.0
        case 1:
            return "topk", torch_node(f, "topk", [x, min(2, shape[-1]), axis]), 0.0
        case 2:
            return "cummax", torch_node(f, "cummax", [x, axis], at=1), 0.0
        case _:
            return "cumsum", torch_node(f, "cumsum", [x, axis]), 0.0


def placed(f: Function) -> tuple[str, str, float]:
    r = f.random
    shape = SHAPES[r.integers(len(SHAPES))]
    x, axis = numbers(f, "x", shape, "float32"), int(r.integers(len(shape)))
    at = f.array("i", r.integers(0, shape[axis], shape), "int64", "temporary")
    match r.integers(4):
        case 0:
            return "gather", torch_node(f, "gather", [x, axis, at]), 0.0
        case 1:
            return "scatter_add", torch_node(f, "scatter_add", [x, axis, at, numbers(f, "s", shape, "float32")]), 8.0
        case 2:
            rows = f.array("j", r.integers(-shape[0], shape[0], 4), "int64", "temporary")
            return "index", torch_node(f, "index.Tensor", [x, (rows,)]), 0.0
        case _:
            return "flip", torch_node(f, "flip", [x, (axis,)]), 0.0


def convolution(f: Function) -> tuple[str, str, float]:
    r = f.random
    groups, taps = int(r.choice([1, 2, 4])), int(r.choice([1, 3, 4]))
    x, w = numbers(f, "x", (2, 4, 9), "float32"), numbers(f, "w", (4, 4 // groups, taps), "float32")
    stride, padding, dilation = int(r.integers(1, 3)), int(r.integers(0, 4)), int(r.integers(1, 3))
    values = [x, w, numbers(f, "b", (4,), "float32"), (stride,), (padding,), (dilation,), False, (0,), groups]
    return "convolution", torch_node(f, "convolution", values), LANES


def linear(f: Function) -> tuple[str, str, float]:
    r, dtype = f.random, str(f.random.choice(FLOATS))
    rows, columns, channels = (int(r.integers(1, most)) for most in (20, 80, 200))
    gap = int(r.choice([0, 3]))
    f.given("x", (rows, channels + gap), dtype, "temporary")
    x = View("x", (rows, channels), (channels + gap, 1), gap)
    bias = f.given("b", (columns,), dtype) if r.random() < 0.5 else None
    weight = f.given("w", (columns, channels), dtype)
    f.node("bringup.linear.default", {"y": ((rows, columns), dtype)}, x=x, weight=weight, bias=bias)
    return "linear", "y", LANES


def bmm(f: Function) -> tuple[str, str, float]:
    r, dtype = f.random, str(f.random.choice(FLOATS))
    batches, rows, channels, columns = (int(r.integers(1, most)) for most in (5, 20, 40, 60))
    x = f.given("x", (batches, rows, channels), dtype, "temporary")
    turned = bool(r.random() < 0.5)
    f.given("w", (batches, columns, channels) if turned else (batches, channels, columns), dtype, "temporary")
    strides = (channels * columns, 1, channels) if turned else (channels * columns, columns, 1)
    matrices = View("w", (batches, channels, columns), strides)
    f.node("aten.bmm.default", {"y": ((batches, rows, columns), dtype)}, self=x, mat2=matrices)
    return "bmm", "y", LANES


def norm(f: Function) -> tuple[str, str, float]:
    r, dtype = f.random, str(f.random.choice(FLOATS))
    rows, width = int(r.integers(1, 12)), int(r.integers(2, 300))
    x, weight = f.given("x", (rows, width), dtype, "temporary"), f.given("w", (width,), dtype)
    shapes = {"y": ((rows, width), dtype)}
    if r.random() < 0.4:
        f.node("bringup.layer_norm.default", shapes, x=x, weight=weight, bias=f.given("b", (width,), dtype), eps=1e-5)
        return "layer_norm", "y", 64.0
    more = {"eps": 1e-5, "offset": float(r.choice([0.0, 1.0])), "round_last": bool(r.random() < 0.5)}
    f.node("bringup.rms_norm.default", shapes, x=x, weight=weight, **more)
    return "rms_norm", "y", 64.0


def softmax(f: Function) -> tuple[str, str, float]:
    r, dtype = f.random, str(f.random.choice(FLOATS))
    shape = int(r.integers(1, 12)), int(r.integers(1, 300))
    x = f.given("x", shape, dtype, "temporary")
    f.node("aten.softmax.int", {"y": (shape, dtype)}, self=x, dim=-1, dtype=None)
    return "softmax", "y", 16.0


def rope(f: Function) -> tuple[str, str, float]:
    r, dtype = f.random, str(f.random.choice(FLOATS))
    tokens, heads, pairs = (int(r.integers(1, most)) for most in (9, 6, 33))
    channels = 2 * pairs + int(r.choice([0, 0, 3]))
    x = f.given("x", (tokens, heads, channels), dtype, "temporary")
    cos, sin = f.given("cos", (tokens, pairs)), f.given("sin", (tokens, pairs))
    shapes = {"y": ((tokens, heads, channels), dtype)}
    f.node("bringup.rope.default", shapes, x_NHK=x, cos_NC=cos, sin_NC=sin, interleaved=bool(r.random() < 0.5))
    return "rope", "y", 8.0


def routing(f: Function) -> tuple[str, str, float]:
    r = f.random
    tokens, experts = int(r.integers(1, 20)), int(r.integers(2, 40))
    count = int(r.integers(1, min(experts, 8) + 1))
    scores = f.given("s", (tokens, experts), "float32", "temporary")
    shapes = {"chosen": ((tokens, count), "int64"), "y": ((tokens, count), "float32")}
    f.node("bringup.top_experts.default", shapes, scores_NE=scores, count=count, by_NE=None)
    return "top_experts", str(r.choice(["y", "chosen"])), 0.0


DRAWN: Mapping[Callable[[Function], tuple[str, str, float]], float] = {
    **{linear: 0.2, bmm: 0.1, norm: 0.14, softmax: 0.07, rope: 0.09, routing: 0.05},
    **{element: 0.2, reduction: 0.07, ordered: 0.03, placed: 0.03, convolution: 0.02},
}


@cache
def _chances() -> tuple[list[Any], np.ndarray]:
    return list(DRAWN), np.cumsum([*DRAWN.values()])


def check(seed: int) -> tuple[str, float]:
    """The operation of a seed, and how far it is from float64, as part of its bound. Raises Different."""
    random = np.random.default_rng((seed, 7))
    if random.random() < 0.01:
        return attention(random, seed)
    if random.random() < 0.01:
        return quantised(random, seed)
    draws, chances = _chances()
    f = Function(seed)
    name, result, steps = draws[min(int(np.searchsorted(chances, random.random())), len(draws) - 1)](f)
    machine, threads = str(random.choice(["host", "generic"])), int(random.choice([1, 2, 5]))
    found = run(separate(f.graph(*f.nodes[0].outputs)), f.started(), machine, threads).read(result)
    with np.errstate(all="ignore"):
        wanted = f.expected()[result]
        return name, _distance(f, name, result, found, wanted, steps, f"{name}, seed {seed}, {machine}")


def _distance(
    f: Function, name: str, result: str, found: np.ndarray, wanted: np.ndarray, steps: float, what: str
) -> float:
    dtype = f.buffers[result].dtype
    ours = np.asarray(found, np.float64)
    if "float" not in dtype:
        if not (ours == wanted).all():
            raise Different(f"{what}: {ours} for {wanted}")
        return 0.0
    largest = float(ml_dtypes.finfo(NUMPY[dtype]).max)
    with np.errstate(all="ignore"):
        wanted = np.where(np.abs(wanted) > largest * (1 + STEP[dtype]), np.copysign(np.inf, wanted), wanted)
        size = np.maximum(1.0, np.abs(wanted))
        if steps >= LANES:  # relative to the sum of what is summed
            size = np.maximum(size, np.nanmax(np.abs(_sizes(f, result)), initial=0.0))
        bound = size * (steps * STEP["float32"] + (STEP[dtype] * 2 if dtype != "float32" else 0.0)) + 1e-37
        off = np.abs(ours - wanted) / bound
    off = np.where((ours == wanted) | (np.isnan(ours) & np.isnan(wanted)), 0.0, off)
    off = np.where(np.isnan(off), np.inf, off)
    worst = float(off.max(initial=0.0))
    if worst > 1.0:
        raise Different(f"{what}: {ours[off > 1][:3]} for {wanted[off > 1][:3]}")
    return worst


def _sizes(f: Function, result: str) -> np.ndarray:
    """The result for the sizes of all numbers: a sum is as far off as its terms are large."""
    own, f.arrays = f.arrays, {n: np.abs(a) if "float" in a.dtype.name else a for n, a in f.arrays.items()}
    sizes, f.arrays = f.expected()[result], own
    return sizes
