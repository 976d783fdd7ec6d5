# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false
"""Converts 8-bit floats, and indices of look-up tables, to float32.

Layouts are those of the OCP 8-bit floating point specification, and of the OCP Microscaling Formats specification 1.0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from llvmlite import ir

from bringup.compile.llvm.ir.dtypes import F32, I16, I32, I64
from bringup.compile.llvm.ir.emitter import Emitter, Value
from bringup.compile.llvm.ir.halves import from_half
from bringup.compile.llvm.ir.lanes import constant, like, vector


def e4m3(e: Emitter, codes: Value) -> Value:
    """float32 of float8_e4m3fn bytes: their bits, moved to a float16, are the value times 2^-8, except for NaN."""
    b, kind = e.b, like(codes, I16)
    wide = b.shl(b.sext(codes, kind), constant(kind, 7))
    bits = b.and_(wide, constant(kind, 0xBF80))
    is_nan = b.icmp_unsigned("==", b.and_(bits, constant(kind, 0x3F80)), constant(kind, 0x3F80))
    bits = b.select(is_nan, constant(kind, 0x7E00), bits)
    return b.fmul(from_half(b, e.machine, bits), constant(like(codes, F32), 256.0))


def e5m2(e: Emitter, codes: Value) -> Value:
    """float32 of float8_e5m2 bytes: each is the upper byte of a float16."""
    kind = like(codes, I16)
    wide = e.b.shl(e.b.zext(codes, kind), constant(kind, 8))
    return from_half(e.b, e.machine, wide)


def e8m0(e: Emitter, codes: Value) -> Value:
    """float32 of float8_e8m0fnu bytes: each is an exponent. 0 is 2^-127, subnormal in float32; 255 is NaN."""
    b, kind = e.b, like(codes, I32)
    wide = b.zext(codes, kind)
    bits = b.shl(wide, constant(kind, 23))
    bits = b.select(b.icmp_unsigned("==", wide, constant(kind, 0)), constant(kind, 0x00400000), bits)
    bits = b.select(b.icmp_unsigned("==", wide, constant(kind, 255)), constant(kind, 0x7FC00000), bits)
    return b.bitcast(bits, like(codes, F32))


FLOAT8: Mapping[str, Callable[[Emitter, Value], Value]] = {
    "float8_e4m3fn": e4m3,
    "float8_e5m2": e5m2,
    "float8_e8m0fnu": e8m0,
}


def looked_up(e: Emitter, table: Value, codes: Value) -> Value:
    """Elements of a float32 table in memory, at i32 indices; one load each."""
    if not isinstance(codes.type, ir.VectorType):
        return e.load(table, "float32", e.b.zext(codes, I64))
    found = vector(codes.type.count)(ir.Undefined)
    for lane in range(codes.type.count):
        at = e.b.zext(e.b.extract_element(codes, I32(lane)), I64)
        found = e.b.insert_element(found, e.load(table, "float32", at), I32(lane))
    return found


class Table16:
    """A table of 16 float32, in vector registers if the processor can permute their lanes."""

    def __init__(self, e: Emitter, table: Value) -> None:
        self._e, self._table, self._lanes = e, table, e.machine.lanes
        self._parts: list[Value] = []
        if e.machine.is_x86 and self._lanes in (8, 16):
            self._parts = [e.load(table, "float32", I64(at), self._lanes) for at in range(0, 16, self._lanes)]

    def at(self, codes: Value) -> Value:
        """The elements at a vector of i32 indices, of which only the lowest four bits are used."""
        e, lanes = self._e, self._lanes
        if not self._parts or codes.type.count != lanes:
            return looked_up(e, self._table, e.b.and_(codes, constant(codes.type, 15)))
        kind = vector(lanes)
        if lanes == 16:
            return e.intrinsic("llvm.x86.avx512.permvar.sf.512", kind, [self._parts[0], codes])
        low, high = (e.intrinsic("llvm.x86.avx2.permps", kind, [part, codes]) for part in self._parts)
        is_high = e.b.icmp_signed("<", e.b.shl(codes, constant(codes.type, 28)), constant(codes.type, 0))
        return e.b.select(is_high, high, low)
