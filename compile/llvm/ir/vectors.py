# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false
"""Vectors from single numbers."""

from __future__ import annotations

from llvmlite import ir

from bringup.compile.llvm.ir.emitter import I32, Value, vector


def joined(b: ir.IRBuilder, numbers: list[Value]) -> Value:
    """float32 numbers as the lanes of a vector."""
    found = vector(len(numbers))(ir.Undefined)
    for lane, value in enumerate(numbers):
        found = b.insert_element(found, value, I32(lane))
    return found
