"""Floating-point operations that round once, if numpy rounds twice or differently from PTX."""

from __future__ import annotations

from typing import Any

import numpy as np

from bringup.compile.ptx.hardware.values import any_lane, array, f16, f32, f64, i64, round_bf16, u32, u64, where

_SMALLEST_NORMAL = f32(2.0**-126)
_BELOW_F32, _TIE_OF_F32 = u64((1 << 29) - 1), u64(1 << 28)
_MAGNITUDE = u32(0x7FFFFFFF)


def flush(values: Any) -> Any:
    """`.ftz`: subnormal float32 become zero with the same sign."""
    return where(np.abs(values) < _SMALLEST_NORMAL, np.copysign(f32(0), values), values)


def saturate(values: Any) -> Any:
    """`.sat`: values clamped to [0, 1]; NaN becomes +0."""
    zero = values.dtype.type(0)
    clamped = np.minimum(np.maximum(values, zero), values.dtype.type(1))
    return where(values > zero, clamped, zero)


def _error(first: Any, second: Any, total: Any) -> Any:
    """The exact rounding error of a sum of two float64 (Knuth's TwoSum). NaN if the sum is not finite."""
    virtual = total - first
    return (first - (total - virtual)) + (second - virtual)


def _odd(total: Any, error: Any) -> Any:
    """Rounds to odd: sets the last bit of a float64 if there is an error, towards the exact value."""
    bits = array(total).view(i64)
    inexact = ((error < 0) | (error > 0)) & ((bits & i64(1)) == 0)
    outward = (error > 0) == (total > 0)
    return where(inexact, where(outward, bits + i64(1), bits - i64(1)), bits).view(f64)


def sum_odd(first: Any, second: Any) -> Any:
    """float64 sums, rounded to odd. Rounding such a sum to float32 or less equals rounding the exact sum once.

    Boldo and Melquiond, "Emulation of FMA and correctly rounded sums" (2008).
    """
    total = first + second
    return _odd(total, _error(first, second, total))


def fma32(first: Any, second: Any, third: Any) -> Any:
    """first * second + third in float32, rounded once (except for halfway cases among subnormal results).

    A product of float32 is exact in float64. The float64 sum is rounded, which changes the result only if it is then
    halfway between two float32.
    """
    product = first.astype(f64) * second
    total = product + third
    halfway = (total.view(u64) & _BELOW_F32) == _TIE_OF_F32
    result = total.astype(f32)
    if any_lane(halfway):
        return _again(result, halfway, product, third)
    return result


def _again(result: Any, halfway: Any, product: Any, third: Any) -> Any:
    """Corrects, in place, the sums that are halfway between two float32 if the float64 sum had a rounding error."""
    if np.ndim(result) == 0:
        return sum_odd(product, third.astype(f64)).astype(f32)
    few = halfway.nonzero()
    first = product[few] if product.shape == result.shape else np.broadcast_to(product, result.shape)[few]
    second = third[few] if np.shape(third) == result.shape else np.broadcast_to(third, result.shape)[few]
    second = second.astype(f64)
    total = first + second
    error = _error(first, second, total)
    if any_lane(error):
        result[few] = _odd(total, error).astype(f32)
    return result


def fma64(first: Any, second: Any, third: Any) -> Any:
    """float64, rounded twice: numpy has no wider type for an exact product."""
    return first * second + third


def fma16(first: Any, second: Any, third: Any) -> Any:
    """first * second + third in fp16, rounded once."""
    return sum_odd(first.astype(f64) * second.astype(f64), third.astype(f64)).astype(f16)


def fma_bf16(first: Any, second: Any, third: Any) -> Any:
    """first * second + third of float32 that are exact in bf16, rounded once to a bf16 pattern."""
    return round_bf16_once(sum_odd(first.astype(f64) * second, third.astype(f64)))


def odd_f32(wide: Any) -> Any:
    """float64 to float32, rounded to odd."""
    nearest = wide.astype(f32)
    bits = array(nearest).view(u32)
    error = wide - nearest
    inexact = ((error < 0) | (error > 0)) & ((bits & u32(1)) == 0)
    outward = (error > 0) == (wide > 0)
    return where(inexact, where(outward, bits + u32(1), bits - u32(1)), bits).view(f32)


def round_bf16_once(wide: Any) -> Any:
    """float64 to the nearest bf16 pattern, rounded once."""
    return round_bf16(odd_f32(wide))


def toward_zero(wide: Any) -> Any:
    """float64, exact or rounded to odd, to float32 toward zero (`.rz`)."""
    nearest = wide.astype(f32)
    bits = array(nearest).view(u32)
    return where(np.abs(nearest.astype(f64)) > np.abs(wide), bits - u32(1), bits).view(f32)


def add_toward_zero(first: Any, second: Any) -> Any:
    """`add.rz.f32`."""
    return toward_zero(sum_odd(first.astype(f64), second.astype(f64)))


def multiply_toward_zero(first: Any, second: Any) -> Any:
    """`mul.rz.f32`."""
    return toward_zero(first.astype(f64) * second)


def smaller(first: Any, second: Any) -> Any:
    """`min`: the smaller value; if one is NaN, the other; -0 is less than +0."""
    return _ordered_zeros(np.fmin(first, second), first, second, np.signbit(first) | np.signbit(second))


def larger(first: Any, second: Any) -> Any:
    """`max`: the larger value; if one is NaN, the other; -0 is less than +0."""
    return _ordered_zeros(np.fmax(first, second), first, second, np.signbit(first) & np.signbit(second))


def smaller_or_nan(first: Any, second: Any) -> Any:
    """`min.NaN`: the smaller value; NaN if either is NaN."""
    return _ordered_zeros(np.minimum(first, second), first, second, np.signbit(first) | np.signbit(second))


def larger_or_nan(first: Any, second: Any) -> Any:
    """`max.NaN`: the larger value; NaN if either is NaN."""
    return _ordered_zeros(np.maximum(first, second), first, second, np.signbit(first) & np.signbit(second))


def _ordered_zeros(result: Any, first: Any, second: Any, negative: Any) -> Any:
    zeros = (first == second) & (result == 0)
    if not any_lane(zeros):
        return result
    zero = result.dtype.type(0)
    return where(zeros, where(negative, -zero, zero), result)


def signs_multiplied(magnitude: Any, first: Any, second: Any) -> Any:
    """`.xorsign`: float32 magnitudes with the exclusive or of the signs of two values."""
    sign = (array(first).view(u32) ^ array(second).view(u32)) & ~_MAGNITUDE
    return ((array(magnitude).view(u32) & _MAGNITUDE) | sign).view(f32)


def exp2(values: Any) -> Any:
    """2^x, computed in float64 and rounded. Hardware has an error of up to 2 ulp."""
    return np.exp2(values.astype(f64)).astype(values.dtype)


def log2(values: Any) -> Any:
    """log2, computed in float64 and rounded."""
    return np.log2(values.astype(f64)).astype(values.dtype)


def sine(values: Any) -> Any:
    """sin, computed in float64 and rounded."""
    return np.sin(values.astype(f64)).astype(values.dtype)


def cosine(values: Any) -> Any:
    """cos, computed in float64 and rounded."""
    return np.cos(values.astype(f64)).astype(values.dtype)


def tangent_hyperbolic(values: Any) -> Any:
    """tanh, computed in float64 and rounded."""
    return np.tanh(values.astype(f64)).astype(values.dtype)


def reciprocal(values: Any) -> Any:
    """1 / x, rounded once."""
    return values.dtype.type(1) / values


def reciprocal_root(values: Any) -> Any:
    """1 / sqrt(x), computed in float64 and rounded."""
    return (1 / np.sqrt(values.astype(f64))).astype(values.dtype)
