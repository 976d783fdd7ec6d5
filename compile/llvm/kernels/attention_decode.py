# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""Attention of one query a sequence over its cache, head by head: scores, their softmax, the sum of values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bringup.compile.llvm.ir.emitter import F32, I64, Cell, Emitter, Value, real, vector
from bringup.compile.llvm.ir.functions import exp, most
from bringup.compile.llvm.kernels.keys import LEAST, Keys


def attention_decode(e: Emitter, settings: Mapping[str, Any]) -> None:
    """Slots: those of `Keys`. Scratch memory has a score for each key. `channels` and `values` are of a head."""
    b, keys = e.b, Keys(e, settings)
    begin, end = e.share(b.mul(keys.sequences, keys.heads))
    with e.loop(begin, end) as number:
        sequence, head = b.udiv(number, keys.heads), b.urem(number, keys.heads)
        group, position = keys.group(head), keys.position(sequence)
        first = keys.first(position)
        count = b.sub(b.add(position, I64(1)), first)
        top = _scores(e, keys, sequence, head, group, position, first, count)
        if settings["sinks"]:
            top = most(e, top, e.load(keys.sinks, settings["sinks"], head))

        def share(at: Value, lanes: int, top: Value = top) -> Value:
            value = exp(e, b.fsub(e.load(e.scratch, "float32", at, lanes), e.spread(top, lanes)))
            e.store(e.scratch, "float32", at, value)
            return value

        total = e.sum(I64(0), count, share)
        if settings["sinks"]:
            total = b.fadd(total, exp(e, b.fsub(e.load(keys.sinks, settings["sinks"], head), top)))
        some = b.fcmp_ordered(">", total, real(0.0))
        factor = b.select(some, b.fdiv(real(1.0), total), real(0.0))
        _mix(e, keys, sequence, group, first, count, factor, b.mul(number, I64(settings["values"])))
    e.finish()


def _scores(
    e: Emitter, keys: Keys, sequence: Value, head: Value, group: Value, position: Value, first: Value, count: Value
) -> Value:
    """Writes the scores to the scratch memory, and gives the largest."""
    b, parts = e.b, parts_of(keys.settings["channels"], e.machine.lanes)
    place = keys.query(sequence, head)
    query = [e.load(place, keys.settings["q"], I64(at), lanes) for at, lanes in parts]
    top = Cell(b, F32, real(LEAST))
    with e.loop(I64(0), count) as at:
        j = b.add(first, at)
        key = keys.key(keys.row(sequence, j), group)
        sums: dict[int, Value] = {}
        for own, (start, lanes) in zip(query, parts, strict=True):
            other = e.load(key, keys.settings["k"], I64(start), lanes)
            sums[lanes] = e.multiply_add(own, other, sums[lanes]) if lanes in sums else b.fmul(own, other)
        product, *rest = (e.total(value) for value in sums.values())
        for value in rest:
            product = b.fadd(product, value)
        score = keys.score(product, head, b.sitofp(b.sub(j, position), F32))
        e.store(e.scratch, "float32", at, score)
        top.set(most(e, score, top.get()))
    return top.get()


def _mix(
    e: Emitter, keys: Keys, sequence: Value, group: Value, first: Value, count: Value, factor: Value, place: Value
) -> None:
    """The sum of values by their shares."""
    b, parts = e.b, parts_of(keys.settings["values"], e.machine.lanes)
    sums = [Cell(b, vector(lanes), real(0.0) if lanes == 1 else e.zero(lanes)) for _, lanes in parts]
    with e.loop(I64(0), count) as at:
        value = keys.value(keys.row(sequence, b.add(first, at)), group)
        share = e.load(e.scratch, "float32", at)
        for cell, (start, lanes) in zip(sums, parts, strict=True):
            other = e.load(value, keys.settings["v"], I64(start), lanes)
            cell.set(e.multiply_add(e.spread(share, lanes), other, cell.get()))
    for cell, (start, lanes) in zip(sums, parts, strict=True):
        mixed = b.fmul(cell.get(), e.spread(factor, lanes))
        e.store(keys.out, keys.settings["q"], b.add(place, I64(start)), mixed)


def parts_of(size: int, lanes: int) -> list[tuple[int, int]]:
    """(first, lanes) of the vectors that channels are in: full ones, then ever shorter ones."""
    found: list[tuple[int, int]] = []
    at = 0
    while at < size:
        while lanes > size - at:
            lanes //= 2
        found.append((at, lanes))
        at += lanes
    return found
