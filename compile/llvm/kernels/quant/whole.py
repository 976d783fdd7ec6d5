# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false
"""Integers that products are computed with: elements of x as whole numbers in digits of 8 bits, and 4-bit codes."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce

from bringup.compile.llvm.ir.dtypes import F32, I8, I32
from bringup.compile.llvm.ir.emitter import Emitter, Value
from bringup.compile.llvm.ir.functions import absolute
from bringup.compile.llvm.ir.lanes import vector
from bringup.compile.llvm.kernels.activations import factors, powers
from bringup.compile.llvm.kernels.quant.weight import from_zero
from bringup.compile.llvm.select.stored import Stored

WORDS = vector(8, I32)
FLOAT4 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)  # 2 · value of each float4_e2m1fn code
HALF_OF_12 = 6
PSHUFB = {16: "llvm.x86.ssse3.pshuf.b.128", 32: "llvm.x86.avx2.pshuf.b", 64: "llvm.x86.avx512.pshuf.b.512"}


def in_integers(stored: Stored) -> Stored:
    """The format whose codes are those of `halves_of`. For float4, these are twice as large without the offset."""
    return replace(stored, offset=HALF_OF_12) if stored.code_dtype == "float4_e2m1fn" else from_zero(stored)


def whole_numbers(e: Emitter, numbers: list[Value], digits: int) -> tuple[list[Value], Value]:
    """Elements of x, 8 to a vector, as i32 codes of `digits` digits, and the factor from these to x.

    One digit: codes from -127 to 127, as `activations.factors` defines them. More: the factor is a power of two.
    """
    b = e.b
    nothing, largest = e.zero(8), absolute(e, numbers[0])
    for each in numbers:
        size = absolute(e, each)
        nothing = e.multiply_add(each, e.zero(8), nothing)
        largest = b.select(b.fcmp_ordered(">", largest, size), largest, size)
    top, none = e.intrinsic("llvm.vector.reduce.fmax.v8f32", F32, [largest]), e.total(nothing)
    step, scale = factors(e, top, none) if digits == 1 else powers(e, top, none, digits)
    shifted = [b.fmul(each, e.spread(step, 8)) for each in numbers]
    return [e.intrinsic("llvm.x86.avx.cvt.ps2dq.256", WORDS, [each]) for each in shifted], scale


def sum_of(e: Emitter, codes: list[Value]) -> Value:
    """The sum of at most 64 codes below 2^23, which does not overflow, as float32."""
    return e.b.sitofp(e.intrinsic("llvm.vector.reduce.add.v8i32", I32, [reduce(e.b.add, codes)]), F32)


def digits_of(e: Emitter, whole: Value, digits: int) -> list[Value]:
    """The signed bytes of 8 whole numbers, the lowest first."""
    b = e.b
    found: list[Value] = []
    for _ in range(digits):
        found.append(b.trunc(whole, vector(8, I8)))
        whole = b.ashr(b.sub(whole, b.sext(found[-1], WORDS)), WORDS([I32(8)] * 8))
    return found


def halves_of(e: Emitter, words: Value, *, is_float4: bool) -> list[Value]:
    """The codes in the low and in the high half of each byte, as bytes. Those of float4 become 2 · value + 12."""
    b, kind = e.b, words.type
    size = 4 * kind.count
    mask, by = kind([I32(0x0F0F0F0F)] * kind.count), kind([I32(4)] * kind.count)
    codes = [b.bitcast(b.and_(half, mask), vector(size, I8)) for half in (words, b.lshr(words, by))]
    if not is_float4:
        return codes
    table = vector(size, I8)([I8(number + 2 * HALF_OF_12) for number in FLOAT4] * (size // 16))
    return [e.intrinsic(PSHUFB[size], vector(size, I8), [table, half]) for half in codes]
