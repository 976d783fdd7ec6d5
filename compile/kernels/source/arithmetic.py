"""Functions of float32 that kernels and generated code call."""

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
def float8_e4m3fn(code):
    """The number of a code in int32 (OCP 8-bit Floating Point Specification, section 5)."""
    size = code & 0x7F
    bits = ((size << 20).to(tl.float32, bitcast=True) * 1.329227995784916e36).to(tl.int32, bitcast=True)
    return (tl.where(size == 0x7F, 0x7FC00000, bits) | ((code & 0x80) << 24)).to(tl.float32, bitcast=True)


@triton.jit
def float4_e2m1fn(code):
    """The number of a code in int32 (OCP Microscaling Formats Specification, section 5.3)."""
    bits = (((code & 7) << 22).to(tl.float32, bitcast=True) * 8.507059173023462e37).to(tl.int32, bitcast=True)
    return (bits | ((code & 8) << 28)).to(tl.float32, bitcast=True)


@triton.jit
def float8_e8m0fnu(code):
    """2^(code - 127) of a code in int32; NaN of 255 (the same specification, section 5.4)."""
    bits = tl.where(code == 0, 0x00400000, tl.where(code == 0xFF, 0x7FC00000, code << 23))
    return bits.to(tl.float32, bitcast=True)


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


@triton.jit
def ordered(values):
    """uint32 of float32: -0 equals 0, NaN is above every number."""
    values = tl.where(values == 0.0, 0.0, values)
    bits = values.to(tl.int32, bitcast=True)
    order = tl.where(bits < 0, bits ^ -1, bits | -2147483648)  # negative numbers backwards, below the others
    return tl.where(values != values, -1, order).to(tl.uint32, bitcast=True)
