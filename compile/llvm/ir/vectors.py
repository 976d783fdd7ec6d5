# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false
"""Builds vectors from scalars and other vectors, sums lanes, and divides channels into vectors."""

from __future__ import annotations

from collections.abc import Iterable

from llvmlite import ir

from bringup.compile.llvm.ir.dtypes import I32
from bringup.compile.llvm.ir.emitter import Emitter, Value
from bringup.compile.llvm.ir.lanes import vector

FOUR = 4  # vectors that are reduced together


def joined(b: ir.IRBuilder, numbers: list[Value]) -> Value:
    """A vector whose lanes are float32 scalars."""
    found = vector(len(numbers))(ir.Undefined)
    for lane, value in enumerate(numbers):
        found = b.insert_element(found, value, I32(lane))
    return found


def shuffled(b: ir.IRBuilder, one: Value, other: Value, lanes: Iterable[int]) -> Value:
    """A vector of these lanes of the concatenation of two vectors."""
    numbers = [I32(lane) for lane in lanes]
    return b.shuffle_vector(one, other, ir.VectorType(I32, len(numbers))(numbers))


def parts_of(size: int, lanes: int) -> list[tuple[int, int]]:
    """(first channel, lanes) of each vector that holds `size` channels: full vectors, then smaller powers of two."""
    found: list[tuple[int, int]] = []
    at = 0
    while at < size:
        while lanes > size - at:
            lanes //= 2
        found.append((at, lanes))
        at += lanes
    return found


def four_sums(e: Emitter, vectors: list[Value]) -> Value:
    """A vector of four sums: those of the lanes of each of four vectors. Adjacent lanes are added first."""
    b, lanes = e.b, getattr(vectors[0].type, "count", 1)
    if lanes < FOUR:
        return joined(b, [e.total(value) for value in vectors])
    while len(vectors) > 1:
        vectors = [_neighbours(b, one, other, lanes) for one, other in zip(vectors[::2], vectors[1::2], strict=True)]
    (value,) = vectors
    while lanes > FOUR:
        lanes //= 2
        low, high = (shuffled(b, value, value, range(first, first + lanes)) for first in (0, lanes))
        value = b.fadd(low, high)
    return value


def _neighbours(b: ir.IRBuilder, one: Value, other: Value, lanes: int) -> Value:
    """For each group of four lanes: the two sums of adjacent lanes of `one`, then those of `other`."""
    even = [first + lane for first in range(0, lanes, FOUR) for lane in (0, 2, lanes, lanes + 2)]
    return b.fadd(*(shuffled(b, one, other, [lane + odd for lane in even]) for odd in (0, 1)))
