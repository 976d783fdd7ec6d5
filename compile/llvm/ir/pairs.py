# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false
"""Dot products of bfloat16 pairs, for processors with AVX512_BF16.

Each lane of an accumulator adds one product after the other, and rounds each sum to float32. Subnormal numbers are
treated as 0 (Intel 64 and IA-32 Architectures Software Developer's Manual, VDPBF16PS).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llvmlite import ir

from bringup.compile.llvm.ir.dtypes import I16, I32
from bringup.compile.llvm.ir.emitter import Emitter, Value
from bringup.compile.llvm.ir.lanes import vector
from bringup.compile.llvm.ir.machine import Machine
from bringup.compile.llvm.ir.vectors import shuffled


class _BFloat(ir.types._BaseFloatType):  # pyright: ignore
    """LLVM's `bfloat`, which llvmlite does not define; used only for arguments of an intrinsic."""

    null, intrinsic_name = "0.0", "bf16"

    def __str__(self) -> str:
        return "bfloat"


_BFloat._create_instance()  # pyright: ignore
PAIRS: Any = ir.VectorType(_BFloat(), 32)
LANES = 16  # float32 lanes of an accumulator


def adds_pairs(machine: Machine, settings: Mapping[str, Any]) -> bool:
    """Whether the processor has the instruction, and both x and the weight of a product are bfloat16."""
    return settings["x"] == settings["weight"] == "bfloat16" and machine.adds_pairs


def pairs_at(e: Emitter, place: Value, index: Value, lanes: int = LANES) -> Value:
    """Loads 2 · `lanes` consecutive bfloat16 as `lanes` pairs in i32."""
    return e.b.load(e.at(place, "bfloat16", index), typ=vector(lanes, I32), align=2)


def last_pair(e: Emitter, place: Value, index: Value) -> Value:
    """The pair of a last bfloat16 without a successor, and 0."""
    return e.b.zext(e.b.load(e.at(place, "bfloat16", index), typ=I16, align=2), I32)


def pairs_or_zeros(e: Emitter, place: Value, index: Value, count: int) -> Value:
    """16 pairs: `count` consecutive bfloat16, a power of two up to 32, padded with zeros."""
    if count == 1:
        return e.b.insert_element(vector(LANES, I32)([I32(0)] * LANES), last_pair(e, place, index), I32(0))
    lanes = count // 2
    value = pairs_at(e, place, index, lanes)
    if lanes == LANES:
        return value
    if lanes == 1:
        return e.b.insert_element(vector(LANES, I32)([I32(0)] * LANES), value, I32(0))
    order = [min(lane, lanes) for lane in range(LANES)]
    zeros = vector(lanes, I32)([I32(0)] * lanes)
    return shuffled(e.b, value, zeros, order)


def add_pairs(e: Emitter, total: Value, one: Value, other: Value) -> Value:
    """total + one · other: 16 float32 accumulators, each with the dot product of the pairs in its lane."""
    words = [e.b.bitcast(each, PAIRS) for each in (one, other)]
    return e.intrinsic("llvm.x86.avx512bf16.dpbf16ps.512", vector(LANES), [total, *words])
