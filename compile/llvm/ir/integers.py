# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false
"""Integer dot products: with the processor's instructions for them (VNNI, PMADDWD), else with 32-bit vector operations.

All variants return the same integers: nothing is rounded, and callers ensure that no sum overflows.
"""

from __future__ import annotations

from functools import reduce

from bringup.compile.llvm.ir.dtypes import I16, I32
from bringup.compile.llvm.ir.emitter import Emitter, Value
from bringup.compile.llvm.ir.lanes import vector


def add_products(e: Emitter, total: Value | None, one: Value, other: Value) -> Value:
    """total + one · other, summed in pairs: two vectors of 16 i16, accumulated into 8 i32."""
    b = e.b
    if "avx2" in e.machine.features:
        found = e.intrinsic("llvm.x86.avx2.pmadd.wd", vector(8, I32), [one, other])
    else:
        product = b.mul(b.sext(one, vector(16, I32)), b.sext(other, vector(16, I32)))
        even, odd = (
            b.shuffle_vector(product, product, vector(8, I32)([I32(2 * lane + first) for lane in range(8)]))
            for first in (0, 1)
        )
        found = b.add(even, odd)
    return found if total is None else b.add(total, found)


def adds_bytes(e: Emitter, lanes: int) -> bool:
    """Whether the processor has an instruction for `add_bytes` with `lanes` accumulators."""
    features = set(e.machine.features)
    if lanes == 16:
        return e.machine.adds_bytes
    return {"avx512vnni", "avx512vl"} <= features or "avxvnni" in features


def add_bytes(e: Emitter, total: Value, unsigned: Value, signed: Value) -> Value:
    """total + unsigned · signed, summed in fours: 32 or 64 products of u8 and i8, accumulated into 8 or 16 i32."""
    kind = total.type
    words = [e.b.bitcast(each, kind) for each in (unsigned, signed)]
    return e.intrinsic(f"llvm.x86.avx512.vpdpbusd.{32 * kind.count}", kind, [total, *words])


def add_fours(e: Emitter, total: Value, unsigned: list[Value], signed: list[Value]) -> Value:
    """total + unsigned · signed, summed in fours, of one or two vectors of u8 below 32 and i8; 4, 8 or 16 i32.

    Without an instruction for `add_bytes`, pairs are summed in i16 first, those of both vectors.
    """
    b, kind = e.b, total.type
    if adds_bytes(e, kind.count):
        for one, other in zip(unsigned, signed, strict=True):
            total = add_bytes(e, total, one, other)
        return total
    narrow = vector(2 * kind.count, I16)
    pairs, fours = _MADD[kind.count]
    found = [e.intrinsic(pairs, narrow, [one, other]) for one, other in zip(unsigned, signed, strict=True)]
    return b.add(total, e.intrinsic(fours, kind, [reduce(b.add, found), narrow([I16(1)] * narrow.count)]))


# By the number of i32 lanes: the instructions that add adjacent products of u8 and i8, and of i16.
_MADD = {
    4: ("llvm.x86.ssse3.pmadd.ub.sw.128", "llvm.x86.sse2.pmadd.wd"),
    8: ("llvm.x86.avx2.pmadd.ub.sw", "llvm.x86.avx2.pmadd.wd"),
}
