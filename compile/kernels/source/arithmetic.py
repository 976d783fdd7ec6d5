"""Arithmetic in float32, and conversions, that kernels and generated code call."""

import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def tanh(x):
    """The hyperbolic tangent, to 2 units in the last place."""
    return libdevice.tanh(x)


@triton.jit
def power(x, y):
    """x to the power of y, to 4 units in the last place (CUDA C++ Programming Guide, "Mathematical Functions")."""
    return libdevice.pow(x, y)


@triton.jit
def log1p(x):
    """The logarithm of 1 + x, to 1 unit in the last place (same guide), also where 1 + x would be rounded to 1."""
    return libdevice.log1p(x)


@triton.jit
def quotient(x, y):
    """x / y, rounded to nearest."""
    return tl.div_rn(x, y)


@triton.jit
def maximum(x, y):
    """The larger operand; NaN if either is NaN, as in torch."""
    return tl.maximum(x, y, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def minimum(x, y):
    """The smaller operand; NaN if either is NaN."""
    return tl.minimum(x, y, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def silu(x):
    """x · sigmoid(x)."""
    return x * tl.sigmoid(x)


@triton.jit
def gelu(x):
    """GELU with the error function (Hendrycks & Gimpel 2016)."""
    return 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))


@triton.jit
def float8_e4m3fn(code):
    """The value of a code in int32, as float32 (OCP 8-bit Floating Point Specification, section 5)."""
    size = code & 0x7F
    bits = ((size << 20).to(tl.float32, bitcast=True) * 1.329227995784916e36).to(tl.int32, bitcast=True)
    return (tl.where(size == 0x7F, 0x7FC00000, bits) | ((code & 0x80) << 24)).to(tl.float32, bitcast=True)


@triton.jit
def to_float8_e4m3fn(x, NATIVE: tl.constexpr):
    """The code, in int32, of a float32 rounded to the nearest float8, ties to even. Values out of range become ±448.

    NATIVE: with an instruction, which sm_89 and later have. Otherwise 20 bits of the mantissa are rounded off. Below
    2^-6, where float8 has steps of 2^-9, the value is added to a float32 whose last bit is such a step.
    """
    if NATIVE:
        code = x.to(tl.float8e4nv).to(tl.uint8, bitcast=True).to(tl.int32)
    else:
        size = minimum(tl.abs(x), 448.0)
        bits = size.to(tl.int32, bitcast=True)
        high = ((bits + 0x7FFFF + ((bits >> 20) & 1)) >> 20) - 960
        low = (size + 16384.0).to(tl.int32, bitcast=True) & 0xFF
        code = tl.where(x != x, 0x7F, tl.where(size < 0.015625, low, high))
        code |= (x.to(tl.int32, bitcast=True) >> 24) & 0x80
    return code


@triton.jit
def scales_of(x, live, BLOCK: tl.constexpr):
    """The scales [R, C / BLOCK] of rows [R, C]: BLOCK columns divided by their scale are in the range of float8."""
    ROWS: tl.constexpr = x.shape[0]
    found = tl.reshape(tl.where(live, x, 0.0), (ROWS, x.shape[1] // BLOCK, BLOCK))
    return quotient(tl.maximum(tl.max(tl.abs(found), 2), 1e-30), 448.0) + tl.sum(found * 0.0, 2)


@triton.jit
def spread(scales, BLOCK: tl.constexpr):
    """The scale of each column: [R, C] from [R, C / BLOCK]."""
    ROWS: tl.constexpr = scales.shape[0]
    BLOCKS: tl.constexpr = scales.shape[1]
    return tl.reshape(tl.broadcast_to(scales[:, :, None], (ROWS, BLOCKS, BLOCK)), (ROWS, BLOCKS * BLOCK))


@triton.jit
def of_block(x, BLOCK: tl.constexpr):
    """The maximum of each block of BLOCK columns: [R, C / BLOCK] from [R, C]."""
    ROWS: tl.constexpr = x.shape[0]
    return tl.max(tl.reshape(x, (ROWS, x.shape[1] // BLOCK, BLOCK)), 2)


@triton.jit
def float4_e2m1fn(code):
    """The value of a code in int32, as float32 (OCP Microscaling Formats Specification, section 5.3)."""
    bits = (((code & 7) << 22).to(tl.float32, bitcast=True) * 8.507059173023462e37).to(tl.int32, bitcast=True)
    return (bits | ((code & 8) << 28)).to(tl.float32, bitcast=True)


@triton.jit
def float8_e8m0fnu(code):
    """2^(code - 127) for a code in int32; NaN for 255 (same specification, section 5.4)."""
    bits = tl.where(code == 0, 0x00400000, tl.where(code == 0xFF, 0x7FC00000, code << 23))
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def gelu_tanh(x):
    """GELU in its tanh approximation (Hendrycks & Gimpel 2016, section 2)."""
    return 0.5 * x * (1.0 + libdevice.tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))


@triton.jit
def remainder(a, b):
    """The remainder of a / b with the sign of b, as in Python."""
    if a.dtype.is_floating():
        found = a - tl.floor(quotient(a, b)) * b
    else:
        rest = a % b
        found = tl.where((rest != 0) & ((rest < 0) != (b < 0)), rest + b, rest)
    return found


@triton.jit
def ordered(values):
    """Maps float32 to uint32 in the same order: -0 equals 0, and NaN is above all other values."""
    values = tl.where(values == 0.0, 0.0, values)
    bits = values.to(tl.int32, bitcast=True)
    order = tl.where(bits < 0, bits ^ -1, bits | -2147483648)  # negative numbers backwards, below the others
    return tl.where(values != values, -1, order).to(tl.uint32, bitcast=True)
