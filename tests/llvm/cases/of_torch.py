"""Forms for torch's operators: element-wise, reductions, sorting, indexing, convolutions.

Shapes are constants in these kernels, so each form is compiled, and has many draws of values.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from bringup.compile.schedule.graph.op_graph import Argument, DType, View
from tests.llvm.cases.drawn import (
    DISTRIBUTIONS,
    FINITE,
    FLOATS,
    Against,
    Drawn,
    Form,
    Random,
    torch_node,
    whole_numbers,
)

SHAPES = ((1,), (7,), (3, 5), (2, 3, 9), (1, 33), (4, 1, 6), (), (2, 1, 3, 4))
OF_ALL = (*FLOATS, "float64")
WHOLE = ("int64", "int32", "int16", "int8", "uint8")
EXACT, CLOSE, NEAR_ONE = Against(), Against("itself", 3.0), Against("one", 4.0)
SUMMED = Against("terms", 4.0)

ONE = {
    **dict.fromkeys(("floor", "ceil", "round", "trunc", "sign", "abs", "neg", "reciprocal", "sqrt", "relu"), EXACT),
    **dict.fromkeys(("isnan", "logical_not"), EXACT),
    **dict.fromkeys(("sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh"), CLOSE),
    **dict.fromkeys(("exp", "log", "log2", "log10", "log1p", "exp2", "expm1", "erf", "erfc", "rsqrt"), CLOSE),
    **dict.fromkeys(("tanh", "sigmoid"), CLOSE),
}
OURS = {"gelu": NEAR_ONE, "gelu_tanh": NEAR_ONE, "silu": CLOSE, "relu": EXACT}
TWO = {
    **dict.fromkeys(("add", "sub", "mul", "div", "maximum", "minimum", "fmod"), EXACT),
    **dict.fromkeys(("gt", "ge", "lt", "le", "eq", "ne", "logical_and", "logical_or", "logical_xor"), EXACT),
    **dict.fromkeys(("remainder", "floor_divide", "pow", "atan2"), CLOSE),
}
OF_WHOLE = (
    *("add", "sub", "mul", "bitwise_and", "bitwise_or", "bitwise_xor", "maximum", "minimum", "fmod", "remainder"),
    *("floor_divide", "lt", "ge", "eq", "logical_and"),
)
REDUCED = ("sum", "mean", "amax", "amin", "any", "all", "prod", "argmax", "argmin", "max", "min", "var")
DIVIDING = ("fmod", "remainder", "floor_divide")


def _shape(r: Random, *, axes: int = 0) -> tuple[int, ...]:
    fitting = [shape for shape in SHAPES if len(shape) >= axes]
    return fitting[r.integers(len(fitting))]


def element(r: Random) -> Form:
    f, shape, dtype = Drawn(r), _shape(r), str(r.choice(OF_ALL))
    if r.random() < 0.2 and dtype != "float64":
        name = str(r.choice(list(OURS)))
        f.node(f"bringup.{name}.default", {"y0": (shape, dtype)}, x=f.spread("x", shape, dtype))
        return f.form(name, OURS[name])
    name = str(r.choice(list(ONE)))
    torch_node(f, name, [f.spread("x", shape, dtype)])
    return f.form(name, CLOSE if dtype == "float64" else ONE[name])  # torch's float64 is itself a step off


def pair(r: Random) -> Form:
    """Of two tensors, one maybe broadcast; of floats, or of a tensor and a number."""
    f, shape, dtype, name = Drawn(r), _shape(r), str(r.choice(OF_ALL)), str(r.choice(list(TWO)))
    other = shape if r.random() < 0.7 else shape[-1:]
    torch_node(f, name, [f.spread("x", shape, dtype), f.spread("z", other, dtype)])
    return f.form(name, CLOSE if dtype == "float64" else TWO[name])


def whole_pair(r: Random) -> Form:
    f, shape, name, dtype = Drawn(r), _shape(r), str(r.choice(OF_WHOLE)), str(r.choice(WHOLE))
    x = f.spread("x", shape, dtype)

    def divisors(random: Random, _: str) -> np.ndarray:
        found = whole_numbers(random, shape, dtype)
        return np.where((found == 0) | (found == -1), 3, found) if name in DIVIDING else found

    torch_node(f, name, [x, f.numbers("z", divisors, dtype)])
    return f.form(f"{name} of whole numbers", EXACT)


def chosen(r: Random) -> Form:
    """Elements that a mask, bounds or another dtype choose."""
    f, shape, dtype = Drawn(r), _shape(r), str(r.choice(FLOATS))
    x = f.spread("x", shape, dtype)
    match r.integers(5):
        case 0:
            torch_node(f, "where", [f.spread("m", shape, "bool"), x, f.spread("z", shape[-1:], dtype)])
            return f.form("where", EXACT)
        case 1:
            torch_node(f, "masked_fill", [x, f.spread("m", shape, "bool"), -1.5])
            return f.form("masked_fill", EXACT)
        case 2:
            torch_node(f, "clamp", [x, -0.5, 1.25] if r.random() < 0.7 else [x, None, 0.0])
            return f.form("clamp", EXACT)
        case 3:
            own = f.spread("n", shape, str(r.choice(WHOLE)))
            torch_node(f, "to", [own, DType(str(r.choice([*OF_ALL, "bool", "int64", "int32"])))])
            return f.form("to of whole numbers", EXACT)
        case _:
            to = str(r.choice([*OF_ALL, "bool"]))
            torch_node(f, "to", [x, DType(to)])
            return f.form("to", EXACT)


def reduction(r: Random) -> Form:
    f, name, shape = Drawn(r), str(r.choice(REDUCED)), _shape(r, axes=1)
    axis, dtype, keeps = int(r.integers(len(shape))), str(r.choice(OF_ALL)), bool(r.random() < 0.5)
    ordering = name in ("amax", "amin", "any", "all", "argmax", "argmin", "max", "min")
    x = f.spread("x", shape, dtype, distributions=DISTRIBUTIONS if ordering or name == "sum" else FINITE)
    listed: Argument = (axis,) if name in ("sum", "mean", "amax", "amin", "var") else axis
    rest: list[Argument] = [1.0, keeps] if name == "var" else [keeps]
    if name == "var" and shape[axis] == 1:
        rest[0] = 0.0
    torch_node(f, name, [x, listed, *rest])
    against = EXACT if ordering else SUMMED if name in ("sum", "mean") else Against("largest", 8.0)
    return f.form(name, against)


def ordered(r: Random) -> Form:
    """Lines in order, with ties and what is no number; and what is summed along them."""
    f, shape = Drawn(r), _shape(r, axes=1)
    axis = int(r.integers(len(shape)))

    def tied(random: Random, distribution: str) -> np.ndarray:
        found = random.integers(-4, 5, shape).astype(np.float32)
        if distribution == "special":
            found = np.where(random.random(shape) < 0.3, random.choice([np.nan, np.inf, -np.inf, -0.0], shape), found)
        return found

    name = str(r.choice(["sort", "topk", "kthvalue", "cummax", "cummin", "cumsum", "cumprod"]))
    if name in ("cumsum", "cumprod"):
        torch_node(f, name, [f.floats("x", shape, str(r.choice(OF_ALL)), distributions=FINITE), axis])
        return f.form(name, SUMMED)
    x = f.numbers("x", (lambda q, _: q.integers(-4, 5, shape)) if name == "kthvalue" else tied, "float32")
    if name == "topk":  # of equal numbers torch names any
        line = shape[axis]
        places = f.numbers("x", lambda q, _: np.argsort(q.random(shape), axis) - line / 2, "float32")
        torch_node(f, name, [places, int(r.integers(1, line + 1)), axis, bool(r.random() < 0.5)])
    elif name == "sort":
        torch_node(f, name, [x, True, axis, bool(r.random() < 0.5)])
    elif name == "kthvalue":
        line = shape[axis]
        places = f.numbers("x", lambda q, _: np.argsort(q.random(shape), axis), "float32")
        torch_node(f, name, [places, int(r.integers(1, line + 1)), axis])
    else:
        torch_node(f, name, [x, axis])
    return f.form(name, EXACT)


def placed(r: Random) -> Form:
    f, shape = Drawn(r), _shape(r, axes=1)
    axis, dtype = int(r.integers(len(shape))), str(r.choice(FLOATS))
    x, name = f.spread("x", shape, dtype), str(r.choice(list(_PLACED)))
    _PLACED[name](f, r, x, axis, dtype)
    sums = name in ("scatter_add", "scatter_reduce", "index_put")
    return f.form(name, Against("terms", 8.0 if dtype == "float32" else 8.0 * 2**13) if sums else EXACT)


def _gather(f: Drawn, r: Random, x: View, axis: int, dtype: str) -> None:
    shape = x.shape
    torch_node(f, "gather", [x, axis, f.indices("i", shape, shape[axis])])


def _scatter(name: str) -> Callable[..., None]:
    def node(f: Drawn, r: Random, x: View, axis: int, dtype: str) -> None:
        shape = x.shape
        source = f.spread("s", shape, dtype, distributions=FINITE)
        if name == "scatter":  # no place twice: of several torch takes any

            def places(q: Random, _: str) -> np.ndarray:
                return np.argsort(q.random(shape), axis)

            at = f.numbers("i", places, "int64")
            torch_node(f, name, [x, axis, at, source])
            return
        at = f.indices("i", shape, shape[axis])
        rule = [str(r.choice(["sum", "amax", "amin", "prod"]))] if name == "scatter_reduce" else []
        torch_node(f, name, [x, axis, at, source, *rule])

    return node


def _rows(f: Drawn, r: Random, x: View, axis: int, dtype: str) -> None:
    shape = x.shape
    if r.random() < 0.5:
        torch_node(f, "index_select", [x, axis, f.indices("i", (4,), shape[axis])])
        return
    listed: list[Argument] = [None] * len(shape)
    listed[axis] = f.indices("i", (4,), shape[axis], negative=True)
    other = int(r.integers(len(shape)))
    if other != axis and r.random() < 0.5:
        listed[other] = f.indices("j", (2, 1), shape[other], negative=True)
    torch_node(f, "index", [x, tuple(listed)])


def _index_put(f: Drawn, r: Random, x: View, axis: int, dtype: str) -> None:
    shape = x.shape
    listed: list[Argument] = [None] * axis
    at = f.indices("i", (4,), shape[axis], negative=True)
    values = f.spread("s", (*shape[:axis], 4, *shape[axis + 1 :]), dtype, distributions=FINITE)
    torch_node(f, "index_put", [x, (*listed, at), values, True])


def _moved(name: str) -> Callable[..., None]:
    def node(f: Drawn, r: Random, x: View, axis: int, dtype: str) -> None:
        shape = x.shape
        match name:
            case "flip":
                torch_node(f, name, [x, (axis,)])
            case "cat":
                wide = (*shape[:axis], 3, *shape[axis + 1 :])
                torch_node(f, name, [(x, f.spread("z", wide, dtype), x), axis])
            case _:
                around = tuple(int(n) for n in r.integers(0, 3, 2 * int(r.integers(1, len(shape) + 1))))
                torch_node(f, name, [x, around, 2.5])

    return node


_PLACED: dict[str, Callable[..., None]] = {
    **{name: _scatter(name) for name in ("scatter", "scatter_add", "scatter_reduce")},
    **{name: _moved(name) for name in ("flip", "cat", "constant_pad_nd")},
    **{"gather": _gather, "index": _rows, "index_put": _index_put},
}


def product(r: Random) -> Form:
    """`mm` and `bmm` of any strides, also of whole numbers; and convolutions."""
    f, dtype = Drawn(r), str(r.choice(FLOATS))
    if r.random() < 0.5:
        axes, groups, taps = int(r.integers(1, 3)), int(r.choice([1, 2, 4])), int(r.choice([1, 3, 4]))
        x = f.spread("x", (2, 4, *(9, 6)[:axes]), dtype)
        w = f.spread("w", (4, 4 // groups, *(taps, 2)[:axes]), dtype, distributions=FINITE)
        lists = [tuple(int(n) for n in r.integers(low, high, axes)) for low, high in ((1, 3), (2, 4), (1, 3))]
        bias = f.floats("b", (4,), dtype, distributions=FINITE) if r.random() < 0.5 else None
        torch_node(f, "convolution", [x, w, bias, *lists, False, (0,) * axes, groups])
        return f.form("convolution", SUMMED)
    m, k, n = (int(size) for size in r.integers(1, 7, 3))
    lead = (3,) if r.random() < 0.5 else ()
    whole = r.random() < 0.2
    dtype = "int64" if whole else str(r.choice(["float64", dtype]))
    one, other = f.spread("x", (*lead, m, k), dtype), f.spread("z", (*lead, k, n), dtype)
    torch_node(f, "bmm" if lead else "mm", [one, other])
    kind = " of whole numbers" if whole else ""
    return f.form(f"{'bmm' if lead else 'mm'} of any strides{kind}", EXACT if whole else Against("terms", 16.0))
