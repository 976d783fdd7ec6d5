# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""Rows of tokens sorted into blocks of one expert each, and back; see `bringup.graphs.ops.moe_experts`.

N tokens · K experts of each, F = N · K rows · E experts · B blocks of R rows · m channels
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from bringup.compile.llvm.ir.cell import Cell
from bringup.compile.llvm.ir.dtypes import I64, POINTER
from bringup.compile.llvm.ir.emitter import Emitter, Value


def rows_of_experts(e: Emitter, settings: Mapping[str, Any]) -> None:
    """Slots: chosen, dense; expert of each block; row of each choice; F; E; R; B. `single`: R is 1.

    If R is not 1, one thread does everything. Scratch memory has a counter per expert: its choices, then its next row.
    """
    b = e.b
    chosen, expert, row = (e.slot(at, POINTER) for at in (0, 1, 2))
    choices, experts, height, blocks = (e.slot(at, I64) for at in (3, 4, 5, 6))
    if settings["single"]:
        begin, end = e.share(choices)
        with e.loop(begin, end) as f:
            e.store(expert, "int64", f, e.load(chosen, "int64", f))
            e.store(row, "int64", f, f)
        e.finish()
        return
    with b.if_then(b.icmp_signed("==", e.part, I64(0))):
        _count(e, I64(0), experts, choices, lambda f: e.load(chosen, "int64", f), e.scratch)
        block = Cell(b, I64, I64(0))
        with e.loop(I64(0), experts) as n:
            first = block.get()
            rows = e.load(e.scratch, "int64", n)
            after = b.add(first, b.udiv(b.add(rows, b.sub(height, I64(1))), height))
            with e.loop(first, after) as own:
                e.store(expert, "int64", own, n)
            e.store(e.scratch, "int64", n, b.mul(first, height))
            block.set(after)
        with e.loop(block.get(), blocks) as own:
            e.store(expert, "int64", own, b.sub(experts, I64(1)))
        with e.loop(I64(0), choices) as f:
            own = e.load(chosen, "int64", f)
            place = e.load(e.scratch, "int64", own)
            e.store(row, "int64", f, place)
            e.store(e.scratch, "int64", own, b.add(place, I64(1)))
    e.finish()


def to_blocks(e: Emitter, settings: Mapping[str, Any]) -> None:
    """Slots: x, its stride; row of each choice; out, dense; F; K; m; B · R. `single`: no row is left empty."""
    b, dtype = e.b, settings["x"]
    x, row, out = (e.slot(at, POINTER) for at in (0, 2, 3))
    stride, choices, each, channels, rows = (e.slot(at, I64) for at in (1, 4, 5, 6, 7))
    begin, end = e.share(rows)
    if not settings["single"]:
        first, last = b.mul(begin, channels), b.mul(end, channels)
        e.each(first, last, lambda k, lanes: e.store(out, dtype, k, e.zero(lanes)))
    with e.loop(I64(0), choices) as f:
        place = e.load(row, "int64", f)
        is_own = b.and_(b.icmp_signed(">=", place, begin), b.icmp_signed("<", place, end))
        with b.if_then(is_own):
            source = e.at(x, dtype, b.mul(b.udiv(f, each), stride))
            target = e.at(out, dtype, b.mul(place, channels))
            e.each(I64(0), channels, lambda k, lanes: e.store(target, dtype, k, e.load(source, dtype, k, lanes)))
    e.finish()


def from_blocks(e: Emitter, settings: Mapping[str, Any]) -> None:
    """Slots: y, dense; weights, their stride of tokens; row of each choice; out, dense; N; m. `each` is K.

    A thread computes some columns of all tokens.
    """
    b, count, dtype = e.b, settings["each"], settings["y"]
    y, weights, row, out = (e.slot(at, POINTER) for at in (0, 1, 3, 4))
    stride, tokens, channels = (e.slot(at, I64) for at in (2, 5, 6))
    begin, end = e.share(channels, e.machine.lanes)
    with e.loop(I64(0), tokens) as token:
        numbers = [e.load(row, "int64", b.add(b.mul(token, I64(count)), I64(k))) for k in range(count)]
        sources = [e.at(y, dtype, b.mul(number, channels)) for number in numbers]
        own = e.at(weights, settings["weights"], b.mul(token, stride))
        factors = [e.load(own, settings["weights"], I64(k)) for k in range(count)]
        place = e.at(out, dtype, b.mul(token, channels))

        def write(
            at: Value, lanes: int, sources: list[Value] = sources, factors: list[Value] = factors, place: Value = place
        ) -> None:
            total = e.zero(lanes)
            for source, factor in zip(sources, factors, strict=True):
                total = e.multiply_add(e.load(source, dtype, at, lanes), e.spread(factor, lanes), total)
            e.store(place, dtype, at, total)

        e.each(begin, end, write)
    e.finish()


def rows_of_blocks(e: Emitter, row: Value, choices: Value, height: Value, blocks: Value, place: Value) -> None:
    """Writes the number of token rows in each block; they come first."""
    _count(e, I64(0), blocks, choices, lambda f: e.b.udiv(e.load(row, "int64", f), height), place)


def _count(
    e: Emitter, first: Value, after: Value, choices: Value, number: Callable[[Value], Value], place: Value
) -> None:
    """Writes the count of each number in first:after among `number(f)`."""
    with e.loop(first, after) as n:
        e.store(place, "int64", n, I64(0))
    with e.loop(I64(0), choices) as f:
        own = number(f)
        e.store(place, "int64", own, e.b.add(e.load(place, "int64", own), I64(1)))
