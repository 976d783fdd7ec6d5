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
def to_float8_e4m3fn(x, NATIVE: tl.constexpr):
    """The code, in int32, of the number of float8 that is nearest, of two the even one; ±448 for what is beyond.

    NATIVE: by an instruction, which there is from sm_89 on. Else a float32 loses 20 bits of its mantissa, and below
    2^-6, where float8 has steps of 2^-9, is added to the float32 whose last bit is such a step.
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
    """[R, C / BLOCK] of rows [R, C]: what BLOCK columns are divided by to be numbers of float8."""
    ROWS: tl.constexpr = x.shape[0]
    found = tl.reshape(tl.where(live, x, 0.0), (ROWS, x.shape[1] // BLOCK, BLOCK))
    return quotient(tl.maximum(tl.max(tl.abs(found), 2), 1e-30), 448.0) + tl.sum(found * 0.0, 2)


@triton.jit
def spread(scales, BLOCK: tl.constexpr):
    """The scale of each column."""
    ROWS: tl.constexpr = scales.shape[0]
    BLOCKS: tl.constexpr = scales.shape[1]
    return tl.reshape(tl.broadcast_to(scales[:, :, None], (ROWS, BLOCKS, BLOCK)), (ROWS, BLOCKS * BLOCK))


@triton.jit
def of_block(x, BLOCK: tl.constexpr):
    """The largest of each BLOCK columns: [R, C / BLOCK] of [R, C]."""
    ROWS: tl.constexpr = x.shape[0]
    return tl.max(tl.reshape(x, (ROWS, x.shape[1] // BLOCK, BLOCK)), 2)


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
