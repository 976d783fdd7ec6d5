# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false
"""Combines the results of `attention_decode` for the spans of each sequence's keys.

H heads · C values of a head
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bringup.compile.llvm.ir.cell import Cell
from bringup.compile.llvm.ir.dtypes import F32, I64, POINTER
from bringup.compile.llvm.ir.emitter import Emitter, real
from bringup.compile.llvm.ir.functions import exp, maximum
from bringup.compile.llvm.ir.lanes import vector
from bringup.compile.llvm.ir.vectors import parts_of
from bringup.compile.llvm.kernels.keys import LEAST, earlier_keys
from bringup.compile.llvm.kernels.spans import inverse, spans_of
from bringup.compile.llvm.select.sizes import SPAN


def attention_merge(e: Emitter, settings: Mapping[str, Any]) -> None:
    """Slots: spans, out, both dense; positions; window; H; sequences; keys of a span; spans per sequence.

    Spans are [sequences, spans, H, C + 2] in float32: C sums of values, the maximum score, and the sum of exponentials
    of the scores minus the maximum. Scratch memory has the factor of each span.
    """
    b, values = e.b, settings["values"]
    given, out, positions = (e.slot(at, POINTER) for at in (0, 1, 2))
    window, heads, sequences, size, spans = (e.slot(at, I64) for at in (3, 4, 5, 6, 7))
    each = I64(values + SPAN)
    begin, end = e.share(b.mul(sequences, heads))
    with e.loop(begin, end) as row:
        sequence, head = b.udiv(row, heads), b.urem(row, heads)
        position = e.load(positions, "int64", sequence)
        count = spans_of(e, position, earlier_keys(e, position, window, is_chunk=settings["chunked"]), size)
        first = e.at(given, "float32", b.mul(b.add(b.mul(b.mul(sequence, spans), heads), head), each))
        step = b.mul(heads, each)
        tops, totals = (e.at(first, "float32", I64(values + n)) for n in range(SPAN))
        top, total = Cell(b, F32, real(LEAST)), Cell(b, F32, real(0.0))
        with e.loop(I64(0), count) as span:
            top.set(maximum(e, e.load(tops, "float32", b.mul(span, step)), top.get()))
        with e.loop(I64(0), count) as span:
            at = b.mul(span, step)
            factor = exp(e, b.fsub(e.load(tops, "float32", at), top.get()), is_below=True)
            e.store(e.scratch, "float32", span, factor)
            total.set(e.multiply_add(factor, e.load(totals, "float32", at), total.get()))
        share = inverse(e, total.get())
        for start, lanes in parts_of(values, e.machine.lanes):
            found = Cell(b, vector(lanes), e.zero(lanes))
            with e.loop(I64(0), count) as span:
                factor = e.spread(e.load(e.scratch, "float32", span), lanes)
                value = e.load(first, "float32", b.add(b.mul(span, step), I64(start)), lanes)
                found.set(e.multiply_add(factor, value, found.get()))
            place = b.add(b.mul(row, I64(values)), I64(start))
            e.store(out, settings["out"], place, b.fmul(found.get(), e.spread(share, lanes)))
    e.finish()
