# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""The experts of each token, from rows of scores [N, E]; see `bringup.graphs.ops.moe_routing`.

The best are selected in descending order of scores, and ascending order of numbers if scores are equal. NaN is never
selected; if nothing else is left, the number is 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from bringup.compile.llvm.ir.cell import Cell
from bringup.compile.llvm.ir.dtypes import F32, I64, POINTER
from bringup.compile.llvm.ir.emitter import Emitter, Value, real

_INFINITY = float("inf")


class Best:
    """The numbers below `count` in the order of their scores, which the function `score` returns."""

    def __init__(self, e: Emitter, count: Value, score: Callable[[Value], Value]) -> None:
        self._e, self._count, self._score = e, count, score
        self._last, self._at = Cell(e.b, F32, real(_INFINITY)), Cell(e.b, I64, I64(-1))

    def next(self) -> tuple[Value, Value]:
        """(number, score) of the next."""
        e, b = self._e, self._e.b
        last, before = self._last.get(), self._at.get()
        value, at = Cell(b, F32, real(-_INFINITY)), Cell(b, I64, I64(-1))
        with e.loop(I64(0), self._count) as n:
            own = self._score(n)
            tied = b.and_(b.fcmp_ordered("==", own, last), b.icmp_signed(">", n, before))
            is_after = b.or_(b.fcmp_ordered("<", own, last), tied)
            is_best = b.or_(b.icmp_signed("<", at.get(), I64(0)), b.fcmp_ordered(">", own, value.get()))
            taken = b.and_(is_after, is_best)
            value.set(b.select(taken, own, value.get()))
            at.set(b.select(taken, n, at.get()))
        self._last.set(value.get())
        self._at.set(at.get())
        return e.maximum(at.get(), I64(0)), value.get()


def top_experts(e: Emitter, settings: Mapping[str, Any]) -> None:
    """Slots: scores, their stride of rows; scores to select by, their stride; chosen, weights, dense; N; E; count."""
    b = e.b
    scores, by, chosen, weights = (e.slot(at, POINTER) for at in (0, 2, 4, 5))
    stride, by_stride, tokens, experts, count = (e.slot(at, I64) for at in (1, 3, 6, 7, 8))
    begin, end = e.share(tokens)
    with e.loop(begin, end) as token:
        own = e.at(scores, settings["scores"], b.mul(token, stride))
        other = e.at(by, settings["by"], b.mul(token, by_stride))
        best = Best(e, experts, lambda n, other=other: e.load(other, settings["by"], n))
        with e.loop(I64(0), count) as k:
            number, _ = best.next()
            place = b.add(b.mul(token, count), k)
            e.store(chosen, "int64", place, number)
            e.store(weights, settings["scores"], place, e.load(own, settings["scores"], number))
    e.finish()


def keep_best_groups(e: Emitter, settings: Mapping[str, Any]) -> None:
    """Slots: scores, their stride of rows; out, dense; N; E; groups, groups to keep, experts per group that are scored.

    Scratch memory has a float32 for each group.
    """
    b, dtype = e.b, settings["scores"]
    scores, out = e.slot(0, POINTER), e.slot(2, POINTER)
    stride, tokens, experts, groups, remaining, most = (e.slot(at, I64) for at in (1, 3, 4, 5, 6, 7))
    size = b.udiv(experts, groups)
    begin, end = e.share(tokens)
    with e.loop(begin, end) as token:
        own = e.at(scores, dtype, b.mul(token, stride))
        place = e.at(out, dtype, b.mul(token, experts))
        with e.loop(I64(0), groups) as group:
            first = b.mul(group, size)
            best = Best(e, size, lambda n, own=own, first=first: e.load(own, dtype, b.add(first, n)))
            total = Cell(b, F32, real(0.0))
            with e.loop(I64(0), most):
                total.set(b.fadd(total.get(), best.next()[1]))
            e.store(e.scratch, "float32", group, e.rounded(total.get(), dtype))
        with e.loop(I64(0), experts) as n:
            e.store(place, dtype, n, real(-_INFINITY))
        best = Best(e, groups, lambda n: e.load(e.scratch, "float32", n))
        with e.loop(I64(0), remaining):
            first = b.mul(best.next()[0], size)
            with e.loop(first, b.add(first, size)) as n:
                e.store(place, dtype, n, e.load(own, dtype, n))
    e.finish()
