# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportUnknownParameterType=false
"""Elementary functions of float32 numbers and vectors, without branches and without a library; of float64 by C's.

Polynomials are those of Cephes (S. Moshier, single precision: expf.c, tanhf.c); erf is 7.1.26 of Abramowitz and
Stegun, "Handbook of Mathematical Functions", whose error is below 1.5e-7.
"""

from __future__ import annotations

from llvmlite import ir

from bringup.compile.llvm.ir.emitter import F64, I32, Emitter, Value, real, suffix, vector

LOG2_E, LN2_HIGH, LN2_LOW = 1.44269504088896341, 0.693359375, -2.12194440e-4
LARGEST, SMALLEST = 88.7228317, -87.3365447504  # beyond that exp is infinity, or below the normal numbers: 0
_EXP = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)
_TANH = (-5.70498872745e-3, 2.06390887954e-2, -5.37397155531e-2, 1.33314422036e-1, -3.33332819422e-1)
_ERF = (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592)


def exp(e: Emitter, x: Value) -> Value:
    """Relative error below 2e-7; infinity from 88.73 on, 0 below -87.33."""
    if x.type == F64:
        return e.library("exp", [x])
    b = e.b
    bounded = least(e, most(e, x, real(SMALLEST, x)), real(LARGEST, x))
    n = e.intrinsic(f"llvm.floor.{suffix(x)}", x.type, [e.multiply_add(bounded, real(LOG2_E, x), real(0.5, x))])
    rest = e.multiply_add(n, real(-LN2_HIGH, x), bounded)
    rest = e.multiply_add(n, real(-LN2_LOW, x), rest)
    series = polynomial(e, rest, _EXP)
    value = b.fadd(e.multiply_add(b.fmul(rest, rest), series, rest), real(1.0, x))
    # 2^n as two factors: n may be 128, whose power alone is no float32.
    kind = vector(x.type.count, I32) if isinstance(x.type, ir.VectorType) else I32
    whole = b.fptosi(n, kind)
    half = b.ashr(whole, _whole(kind, 1))
    value = b.fmul(b.fmul(value, _power_of_two(e, half, x)), _power_of_two(e, b.sub(whole, half), x))
    value = b.select(b.fcmp_ordered("<", x, real(SMALLEST, x)), real(0.0, x), value)
    value = b.select(b.fcmp_ordered(">", x, real(LARGEST, x)), real(float("inf"), x), value)
    return b.select(b.fcmp_unordered("uno", x, x), x, value)


def tanh(e: Emitter, x: Value) -> Value:
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
    """An error of 1.5e-7: relative to 1, not to the result."""
    if x.type == F64:
        return e.library("erf", [x])
    b = e.b
    size = absolute(e, x)
    t = b.fdiv(real(1.0, x), e.multiply_add(real(0.3275911, x), size, real(1.0, x)))
    tail = b.fmul(b.fmul(polynomial(e, t, _ERF), t), exp(e, b.fneg(b.fmul(size, size))))
    return e.intrinsic(f"llvm.copysign.{suffix(x)}", x.type, [b.fsub(real(1.0, x), tail), x])


def sigmoid(e: Emitter, x: Value) -> Value:
    return e.b.fdiv(real(1.0, x), e.b.fadd(real(1.0, x), exp(e, e.b.fneg(x))))


def silu(e: Emitter, x: Value) -> Value:
    return e.b.fdiv(x, e.b.fadd(real(1.0, x), exp(e, e.b.fneg(x))))


def gelu(e: Emitter, x: Value) -> Value:
    """x · Φ(x) (Hendrycks and Gimpel 2016)."""
    part = erf(e, e.b.fmul(x, real(0.7071067811865476, x)))
    return e.b.fmul(e.b.fmul(real(0.5, x), x), e.b.fadd(real(1.0, x), part))


def gelu_tanh(e: Emitter, x: Value) -> Value:
    """Its approximation by tanh."""
    b = e.b
    cube = b.fmul(b.fmul(x, x), x)
    inner = b.fmul(real(0.7978845608028654, x), e.multiply_add(real(0.044715, x), cube, x))
    return b.fmul(b.fmul(real(0.5, x), x), b.fadd(real(1.0, x), tanh(e, inner)))


def sqrt(e: Emitter, x: Value) -> Value:
    return e.intrinsic(f"llvm.sqrt.{suffix(x)}", x.type, [x])


def rsqrt(e: Emitter, x: Value) -> Value:
    return e.b.fdiv(real(1.0, x), sqrt(e, x))


def absolute(e: Emitter, x: Value) -> Value:
    return e.intrinsic(f"llvm.fabs.{suffix(x)}", x.type, [x])


def most(e: Emitter, one: Value, other: Value) -> Value:
    """The larger number; `other` where one is NaN, as processors do it."""
    return e.b.select(e.b.fcmp_ordered(">", one, other), one, other)


def least(e: Emitter, one: Value, other: Value) -> Value:
    return e.b.select(e.b.fcmp_ordered("<", one, other), one, other)


def polynomial(e: Emitter, x: Value, factors: tuple[float, ...]) -> Value:
    """By Horner's rule, the factor of the highest power first."""
    value = real(factors[0], x)
    for factor in factors[1:]:
        value = e.multiply_add(value, x, real(factor, x))
    return value


def _power_of_two(e: Emitter, n: Value, like: Value) -> Value:
    bits = e.b.shl(e.b.add(n, _whole(n.type, 127)), _whole(n.type, 23))
    return e.b.bitcast(bits, like.type)


def _whole(kind: object, value: int) -> Value:
    return kind([I32(value)] * kind.count) if isinstance(kind, ir.VectorType) else I32(value)
