# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""Functions of one value, by the short name of the operator.

A function without code here is that of C's library, in float64; a float32 result is rounded once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from bringup.compile.llvm.ir.dtypes import F32, F64
from bringup.compile.llvm.ir.emitter import Emitter, Value, real, suffix
from bringup.compile.llvm.ir.functions import absolute, exp, gelu, gelu_tanh, rsqrt, sigmoid, silu, sqrt, tanh

One = Callable[[Emitter, Value], Value]


def from_library(e: Emitter, name: str, arguments: list[Value]) -> Value:
    """Calls a function of C's library in float64; the result has the type of the arguments."""
    if arguments[0].type == F64:
        return e.library(name, arguments)
    return e.b.fptrunc(e.library(name, [e.b.fpext(value, F64) for value in arguments]), F32)


def sign(e: Emitter, x: Value) -> Value:
    """The sign: -1, 0 or 1; 0 for NaN, as in torch."""
    above, below = (e.b.fcmp_ordered(side, x, real(0.0, x)) for side in "><")
    return e.b.select(above, real(1.0, x), e.b.select(below, real(-1.0, x), real(0.0, x)))


def _library(name: str) -> One:
    return lambda e, x: from_library(e, name, [x])


def _intrinsic(name: str) -> One:
    return lambda e, x: e.intrinsic(f"llvm.{name}.{suffix(x)}", x.type, [x])


def _reciprocal(e: Emitter, x: Value) -> Value:
    return e.b.fdiv(real(1.0, x), x)


_LIBRARY = (
    *("sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh"),
    *("log", "log2", "log10", "log1p", "exp2", "expm1", "erf", "erfc"),
)
ONE: Mapping[str, One] = {
    **{name: _library(name) for name in _LIBRARY},
    **{name: _intrinsic(name) for name in ("floor", "ceil", "trunc")},
    "round": _intrinsic("rint"),  # ties to even
    **{"exp": exp, "tanh": tanh, "sigmoid": sigmoid, "silu": silu, "gelu": gelu, "gelu_tanh": gelu_tanh},
    **{"sqrt": sqrt, "rsqrt": rsqrt, "abs": absolute, "sign": sign, "reciprocal": _reciprocal},
}
WHOLE = frozenset({"floor", "ceil", "trunc", "round"})  # these return integers unchanged
