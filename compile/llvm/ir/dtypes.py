# pyright: reportMissingTypeStubs=false
"""Storage types: how LLVM stores the elements of each dtype."""

from __future__ import annotations

from llvmlite import ir

I1, I8, I16, I32, I64 = (ir.IntType(bits) for bits in (1, 8, 16, 32, 64))
F32, F64, POINTER, NOTHING = ir.FloatType(), ir.DoubleType(), ir.PointerType(), ir.VoidType()
# The type of a stored element. bfloat16 is the upper half of a float32.
STORED = {
    "float64": F64,
    "float32": F32,
    "bfloat16": I16,
    "float16": I16,
    "int64": I64,
    "int32": I32,
    "int16": I16,
    "int8": I8,
    "uint8": I8,
    "bool": I8,
}
AS_STORED = ("float64", "float32", "int64")
_SIZES = {
    "float64": 8,
    "float32": 4,
    "bfloat16": 2,
    "float16": 2,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
}


def size_of(dtype: str) -> int:
    """The bytes of an element."""
    return _SIZES[dtype]
