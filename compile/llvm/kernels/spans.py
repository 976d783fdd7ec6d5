# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""Spans of a sequence's keys: how many there are, who has which, and what is left to do with all of them."""

from __future__ import annotations

from bringup.compile.llvm.ir.emitter import I64, Cell, Emitter, Value, real
from bringup.compile.llvm.kernels.keys import Keys


def most_spans(e: Emitter, keys: Keys, size: Value) -> Value:
    """The number of spans of the sequence that has most; `size` keys a span."""
    found = Cell(e.b, I64, I64(1))
    with e.loop(I64(0), keys.sequences) as sequence:
        found.set(e.most(found.get(), spans_of(e, keys.position(sequence), keys.window, size)))
    return found.get()


def share_of_rows(e: Emitter, rows: Value, parts: Value) -> tuple[Value, Value]:
    """This part of a launch of rows with so many parts: whole rows, where there are enough; keys are read in order."""
    b = e.b
    is_enough = b.icmp_signed(">=", rows, e.parts)
    whole, single = e.share(rows), e.share(b.mul(rows, parts))
    begin, end = (b.select(is_enough, b.mul(row, parts), part) for row, part in zip(whole, single, strict=True))
    return begin, end


def inverse(e: Emitter, total: Value) -> Value:
    """1 / total; of 0, where no key is seen, 0, and of NaN NaN."""
    b = e.b
    return b.select(b.fcmp_unordered("ueq", total, real(0.0)), total, b.fdiv(real(1.0), total))


def spans_of(e: Emitter, position: Value, window: Value, size: Value) -> Value:
    """How many spans of `size` keys a query at a position sees."""
    b = e.b
    return b.udiv(b.add(e.least(b.add(position, I64(1)), window), b.sub(size, I64(1))), size)
