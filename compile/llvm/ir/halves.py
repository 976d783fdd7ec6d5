# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportUnknownParameterType=false
"""Converts float16 (IEEE 754 binary16) to float32 and back: with an instruction if the processor has one, else by bits.

A float32 has 8 exponent bits and 23 mantissa bits, a float16 5 and 10. On a processor without the instruction, LLVM
would call a library function.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from bringup.compile.llvm.ir.dtypes import F32, I16, I32
from bringup.compile.llvm.ir.lanes import constant, like
from bringup.compile.llvm.ir.machine import Machine

Value = Any  # an ir.Value; llvmlite has no type annotations
HALF = ir.HalfType()
_INFINITY, _SIGN = 0x7F800000, 0x80000000  # bits of a float32
_PAST = 0x47800000  # 2^16: magnitudes that round to this or more become infinity
_NORMAL = 0x38800000  # 2^-14: smaller magnitudes are subnormal in float16, with constant spacing


def from_half(b: ir.IRBuilder, machine: Machine, bits: Value) -> Value:
    """The float32 of a float16, which is passed as its bits in an i16, or a vector of these."""
    if machine.converts_halves:
        return b.fpext(b.bitcast(bits, like(bits, HALF)), like(bits, F32))
    wide: Value = b.zext(bits, like(bits, I32))
    moved = b.shl(b.and_(wide, constant(wide.type, 0x7FFF)), constant(wide.type, 13))
    # Both exponents are 0 for subnormal numbers, so this product is correct for them too.
    scaled = b.fmul(b.bitcast(moved, like(bits, F32)), constant(like(bits, F32), 2.0**112))
    found = b.bitcast(scaled, wide.type)
    is_finite = b.icmp_unsigned("<", moved, constant(wide.type, 0x0F800000))
    found = b.select(is_finite, found, b.or_(found, constant(wide.type, _INFINITY)))
    sign = b.shl(b.and_(wide, constant(wide.type, 0x8000)), constant(wide.type, 16))
    return b.bitcast(b.or_(found, sign), like(bits, F32))


def to_half(b: ir.IRBuilder, machine: Machine, value: Value) -> Value:
    """The bits of the nearest float16, ties to even; infinity from 65520; NaN stays NaN."""
    if machine.converts_halves:
        return b.bitcast(b.fptrunc(value, like(value, HALF)), like(value, I16))
    bits: Value = b.bitcast(value, like(value, I32))
    sign = b.and_(bits, constant(bits.type, _SIGN))
    size = b.xor(bits, sign)
    odd = b.and_(b.lshr(size, constant(bits.type, 13)), constant(bits.type, 1))
    normal = b.lshr(b.add(b.sub(size, constant(bits.type, (112 << 23) - 0xFFF)), odd), constant(bits.type, 13))
    # The last bit of a sum with 1/2 is 2^-24, as is the last bit of a subnormal float16.
    small = b.bitcast(b.fadd(b.bitcast(size, value.type), constant(like(value, F32), 0.5)), bits.type)
    small = b.sub(small, constant(bits.type, 0x3F000000))
    is_nan = b.icmp_unsigned(">", size, constant(bits.type, _INFINITY))
    far = b.select(is_nan, constant(bits.type, 0x7E00), constant(bits.type, 0x7C00))
    found = b.select(b.icmp_unsigned("<", size, constant(bits.type, _NORMAL)), small, normal)
    found = b.select(b.icmp_unsigned(">=", size, constant(bits.type, _PAST)), far, found)
    return b.trunc(b.or_(found, b.lshr(sign, constant(bits.type, 16))), like(value, I16))
