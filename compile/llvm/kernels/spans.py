# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""Spans of a sequence's keys: their number, their assignment to threads, and the combination of their results."""

from __future__ import annotations

from bringup.compile.llvm.ir.cell import Cell
from bringup.compile.llvm.ir.dtypes import I64
from bringup.compile.llvm.ir.emitter import Emitter, Value, real
from bringup.compile.llvm.kernels.keys import Keys


def most_spans(e: Emitter, keys: Keys, size: Value) -> Value:
    """The largest number of spans of a sequence; a span has `size` keys."""
    found = Cell(e.b, I64, I64(1))
    with e.loop(I64(0), keys.sequences) as sequence:
        position = keys.position(sequence)
        found.set(e.maximum(found.get(), spans_of(e, position, keys.earlier(position), size)))
    return found.get()


def share_of_rows(e: Emitter, rows: Value, parts: Value) -> tuple[Value, Value]:
    """The share of one part of a launch over rows: complete rows, if there are enough; keys are read in order."""
    b = e.b
    is_enough = b.icmp_signed(">=", rows, e.parts)
    whole, single = e.share(rows), e.share(b.mul(rows, parts))
    begin, end = (b.select(is_enough, b.mul(row, parts), part) for row, part in zip(whole, single, strict=True))
    return begin, end


def inverse(e: Emitter, total: Value) -> Value:
    """1 / total; 0 for 0 (the query attends to no key), NaN for NaN."""
    b = e.b
    return b.select(b.fcmp_unordered("ueq", total, real(0.0)), total, b.fdiv(real(1.0), total))


def spans_of(e: Emitter, position: Value, earlier: Value, size: Value) -> Value:
    """The number of spans of `size` keys that a query attends to: its own and up to `earlier` ones before it."""
    b = e.b
    return b.udiv(b.add(e.minimum(position, earlier), size), size)
