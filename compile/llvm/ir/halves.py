# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportUnknownParameterType=false
"""Converts float16 (IEEE 754 binary16) to float32 and back: with an instruction if the processor has one, else by bits.

A float32 has 8 exponent bits and 23 mantissa bits, a float16 5 and 10. On a processor without the instruction, LLVM
would call a library function.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from bringup.compile.llvm.ir.machine import Machine

Value = Any  # an ir.Value; llvmlite has no type annotations
_F32, _HALF, _I16, _I32 = ir.FloatType(), ir.HalfType(), ir.IntType(16), ir.IntType(32)
_INFINITY, _SIGN = 0x7F800000, 0x80000000  # bits of a float32
_PAST = 0x47800000  # 2^16: magnitudes that round to this or more become infinity
_NORMAL = 0x38800000  # 2^-14: smaller magnitudes are subnormal in float16, with constant spacing


def from_half(b: ir.IRBuilder, machine: Machine, bits: Value) -> Value:
    """The float32 of a float16, which is passed as its bits in an i16, or a vector of these."""
    if machine.converts_halves:
        return b.fpext(b.bitcast(bits, _like(bits, _HALF)), _like(bits, _F32))
    wide: Value = b.zext(bits, _like(bits, _I32))
    moved = b.shl(b.and_(wide, _number(wide, 0x7FFF)), _number(wide, 13))
    # Both exponents are 0 for subnormal numbers, so this product is correct for them too.
    scaled = b.fmul(b.bitcast(moved, _like(bits, _F32)), _real(bits, 2.0**112))
    found = b.bitcast(scaled, wide.type)
    is_finite = b.icmp_unsigned("<", moved, _number(wide, 0x0F800000))
    found = b.select(is_finite, found, b.or_(found, _number(wide, _INFINITY)))
    sign = b.shl(b.and_(wide, _number(wide, 0x8000)), _number(wide, 16))
    return b.bitcast(b.or_(found, sign), _like(bits, _F32))


def to_half(b: ir.IRBuilder, machine: Machine, value: Value) -> Value:
    """The bits of the nearest float16, ties to even; infinity from 65520; NaN stays NaN."""
    if machine.converts_halves:
        return b.bitcast(b.fptrunc(value, _like(value, _HALF)), _like(value, _I16))
    bits: Value = b.bitcast(value, _like(value, _I32))
    sign = b.and_(bits, _number(bits, _SIGN))
    size = b.xor(bits, sign)
    odd = b.and_(b.lshr(size, _number(bits, 13)), _number(bits, 1))
    normal = b.lshr(b.add(b.sub(size, _number(bits, (112 << 23) - 0xFFF)), odd), _number(bits, 13))
    # The last bit of a sum with 1/2 is 2^-24, as is the last bit of a subnormal float16.
    small = b.bitcast(b.fadd(b.bitcast(size, value.type), _real(value, 0.5)), bits.type)
    small = b.sub(small, _number(bits, 0x3F000000))
    is_nan = b.icmp_unsigned(">", size, _number(bits, _INFINITY))
    far = b.select(is_nan, _number(bits, 0x7E00), _number(bits, 0x7C00))
    found = b.select(b.icmp_unsigned("<", size, _number(bits, _NORMAL)), small, normal)
    found = b.select(b.icmp_unsigned(">=", size, _number(bits, _PAST)), far, found)
    return b.trunc(b.or_(found, b.lshr(sign, _number(bits, 16))), _like(value, _I16))


def _like(value: Value, element: Any) -> Any:
    """A type with the same number of lanes as `value`."""
    return ir.VectorType(element, value.type.count) if isinstance(value.type, ir.VectorType) else element


def _number(like: Value, value: int) -> Value:
    return like.type([_I32(value)] * like.type.count) if isinstance(like.type, ir.VectorType) else like.type(value)


def _real(like: Value, value: float) -> Value:
    kind = _like(like, _F32)
    return kind([_F32(value)] * kind.count) if isinstance(kind, ir.VectorType) else kind(value)
