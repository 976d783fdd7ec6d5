"""Functions of float32 that generated code calls."""

import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def tanh(x):
    """The hyperbolic tangent, to 2 units in the last place."""
    return libdevice.tanh(x)


@triton.jit
def quotient(x, y):
    """x / y, rounded to nearest."""
    return tl.div_rn(x, y)


@triton.jit
def maximum(x, y):
    """The larger; NaN where either is NaN, as torch has it."""
    return tl.maximum(x, y, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def minimum(x, y):
    """The smaller; NaN where either is NaN."""
    return tl.minimum(x, y, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def silu(x):
    """x · sigmoid(x)."""
    return x * tl.sigmoid(x)


@triton.jit
def gelu(x):
    """By the error function (Hendrycks & Gimpel 2016)."""
    return 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))


@triton.jit
def gelu_tanh(x):
    """The tanh approximation (section 2 of the same paper)."""
    return 0.5 * x * (1.0 + libdevice.tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))


@triton.jit
def remainder(a, b):
    """As in Python: with the sign of b."""
    if a.dtype.is_floating():
        found = a - tl.floor(quotient(a, b)) * b
    else:
        rest = a % b
        found = tl.where((rest != 0) & ((rest < 0) != (b < 0)), rest + b, rest)
    return found
