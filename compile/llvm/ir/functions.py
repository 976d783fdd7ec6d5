# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportUnknownParameterType=false
"""Elementary functions of float32 scalars and vectors, without branches or library calls; float64 uses C's library.

The polynomial of tanh is that of Cephes (S. Moshier, single precision: tanhf.c), as is ln(2) in two parts; erf is
7.1.26 of Abramowitz and Stegun, "Handbook of Mathematical Functions", whose error is below 1.5e-7.
"""

from __future__ import annotations

from bringup.compile.llvm.ir.dtypes import F64, I32
from bringup.compile.llvm.ir.emitter import Emitter, Value, real, suffix
from bringup.compile.llvm.ir.lanes import constant, like

LOG2_E, LN2_HIGH, LN2_LOW = 1.44269504088896341, 0.693359375, -2.12194440e-4
LARGEST, SMALLEST = 89.0, -88.0  # the argument of exp is clamped to this range; beyond it the result is infinity or 0
_ROUND = 1.5 * 2**23  # adding this to x rounds x to the nearest integer, in the low bits of the sum
# Coefficients of r², r³, … in a polynomial for e^r, |r| ≤ ln(2) / 2, with the smallest maximum relative error: 3.1e-9.
_EXP = (1.3814539878e-3, 8.3687451271e-3, 4.1668390790e-2, 1.6666520399e-1, 4.9999993432e-1)
_TANH = (-5.70498872745e-3, 2.06390887954e-2, -5.37397155531e-2, 1.33314422036e-1, -3.33332819422e-1)
_ERF = (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592)


def exp(e: Emitter, x: Value, *, is_below: bool = False) -> Value:
    """e^x. Relative error below 1e-7 for normal results; infinity from 88.73, 0 below -87.69; NaN for NaN.

    `is_below`: no x is above 0, which needs fewer instructions.
    """
    if x.type == F64:
        return e.library("exp", [x])
    b = e.b
    bounded = maximum(e, real(SMALLEST, x), x)
    if not is_below:
        bounded = minimum(e, real(LARGEST, x), bounded)
    shifted = e.multiply_add(bounded, real(LOG2_E, x), real(_ROUND, x))
    n = b.fsub(shifted, real(_ROUND, x))
    rest = e.multiply_add(n, real(-LN2_HIGH, x), bounded)
    rest = e.multiply_add(n, real(-LN2_LOW, x), rest)
    value = polynomial(e, rest, (*_EXP, 1.0, 1.0))
    kind = like(x, I32)
    # The bits of 2^n. For n = -127 they are 0.
    bits = b.add(b.shl(b.bitcast(shifted, kind), constant(kind, 23)), constant(kind, 127 << 23))
    if not is_below:  # 2^128 exceeds float32, so it is computed as 2 · 2^127
        most_bits = constant(kind, (127 + 127) << 23)
        is_last = b.icmp_signed(">", bits, most_bits)
        value = b.select(is_last, b.fadd(value, value), value)
        bits = b.select(is_last, most_bits, bits)
    return b.fmul(value, b.bitcast(bits, x.type))


def tanh(e: Emitter, x: Value) -> Value:
    """Below 0.625 by a polynomial in x², else by 1 - 2 / (e^2|x| + 1), with the sign of x."""
    if x.type == F64:
        return e.library("tanh", [x])
    b = e.b
    size = absolute(e, x)
    far = b.fsub(real(1.0, x), b.fdiv(real(2.0, x), b.fadd(exp(e, b.fadd(size, size)), real(1.0, x))))
    far = e.intrinsic(f"llvm.copysign.{suffix(x)}", x.type, [far, x])
    square = b.fmul(x, x)
    near = e.multiply_add(b.fmul(polynomial(e, square, _TANH), square), x, x)
    return b.select(b.fcmp_ordered("<", size, real(0.625, x)), near, far)


def erf(e: Emitter, x: Value) -> Value:
    """The error function. The absolute error is below 1.5e-7."""
    if x.type == F64:
        return e.library("erf", [x])
    b = e.b
    size = absolute(e, x)
    t = b.fdiv(real(1.0, x), e.multiply_add(real(0.3275911, x), size, real(1.0, x)))
    tail = b.fmul(b.fmul(polynomial(e, t, _ERF), t), exp(e, b.fneg(b.fmul(size, size)), is_below=True))
    return e.intrinsic(f"llvm.copysign.{suffix(x)}", x.type, [b.fsub(real(1.0, x), tail), x])


def sigmoid(e: Emitter, x: Value) -> Value:
    """1 / (1 + e^-x)."""
    return e.b.fdiv(real(1.0, x), e.b.fadd(real(1.0, x), exp(e, e.b.fneg(x))))


def silu(e: Emitter, x: Value) -> Value:
    """x · sigmoid(x) (Hendrycks and Gimpel 2016)."""
    return e.b.fdiv(x, e.b.fadd(real(1.0, x), exp(e, e.b.fneg(x))))


def gelu(e: Emitter, x: Value) -> Value:
    """x · Φ(x) (Hendrycks and Gimpel 2016)."""
    part = erf(e, e.b.fmul(x, real(0.7071067811865476, x)))
    return e.b.fmul(e.b.fmul(real(0.5, x), x), e.b.fadd(real(1.0, x), part))


def gelu_tanh(e: Emitter, x: Value) -> Value:
    """The tanh approximation of GELU: (1 + tanh(u)) / 2 = 1 / (1 + e^-2u)."""
    b = e.b
    square = b.fmul(x, x)
    factor = e.multiply_add(square, real(-2 * 0.7978845608028654 * 0.044715, x), real(-2 * 0.7978845608028654, x))
    return b.fdiv(x, b.fadd(real(1.0, x), exp(e, b.fmul(x, factor))))


def sqrt(e: Emitter, x: Value) -> Value:
    return e.intrinsic(f"llvm.sqrt.{suffix(x)}", x.type, [x])


def rsqrt(e: Emitter, x: Value) -> Value:
    """1 / sqrt(x), rounded twice."""
    return e.b.fdiv(real(1.0, x), sqrt(e, x))


def absolute(e: Emitter, x: Value) -> Value:
    return e.intrinsic(f"llvm.fabs.{suffix(x)}", x.type, [x])


def maximum(e: Emitter, one: Value, other: Value) -> Value:
    """The maximum; `other` if either is NaN, as the instructions of processors define it."""
    return e.b.select(e.b.fcmp_ordered(">", one, other), one, other)


def minimum(e: Emitter, one: Value, other: Value) -> Value:
    """The minimum; `other` if either is NaN."""
    return e.b.select(e.b.fcmp_ordered("<", one, other), one, other)


def polynomial(e: Emitter, x: Value, factors: tuple[float, ...]) -> Value:
    """A polynomial by Horner's rule; the coefficient of the highest power is first."""
    value = real(factors[0], x)
    for factor in factors[1:]:
        value = e.multiply_add(value, x, real(factor, x))
    return value
