# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""Attention of one query a sequence over its cache, head by head: scores, their softmax, the sum of values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from bringup.compile.llvm.ir.emitter import F32, I64, Cell, Emitter, Value, real, vector
from bringup.compile.llvm.ir.functions import exp, most
from bringup.compile.llvm.kernels.keys import LEAST, Keys

Place = Callable[[Value], Value]  # number of a key that the query sees -> its position
SPARE = 4  # vector registers that do not hold sums of values: values themselves, and shares


def attention_decode(e: Emitter, settings: Mapping[str, Any]) -> None:
    """Slots: those of `Keys`; how many float32 the scratch memory has. `channels` and `values` are of a head.

    `together` heads of a group share each key that is read. Scratch memory has their queries, and a score of each of
    them for each key; then, where keys are chosen, their positions.
    """
    b, keys, together = e.b, Keys(e, settings), settings["together"]
    scores = e.at(e.scratch, "float32", I64(together * settings["channels"]))
    parts = b.udiv(keys.heads, I64(together))
    begin, end = e.share(b.mul(keys.sequences, parts))
    with e.loop(begin, end) as number:
        sequence, head = b.udiv(number, parts), b.mul(b.urem(number, parts), I64(together))
        group, position = keys.group(head), keys.position(sequence)
        first = keys.first(position)
        place_of, count = _places(e, keys, sequence, first, b.sub(b.add(position, I64(1)), first))
        rows = [e.at(scores, "float32", b.mul(I64(n), count)) for n in range(together)]
        tops = _scores(e, keys, sequence, head, group, position, place_of, rows, count)
        factors = [_shares(e, keys, b.add(head, I64(n)), row, count, tops[n]) for n, row in enumerate(rows)]
        place = b.mul(b.add(b.mul(sequence, keys.heads), head), I64(settings["values"]))
        _mix(e, keys, sequence, group, place_of, count, rows, factors, place)
    e.finish()


def _places(e: Emitter, keys: Keys, token: Value, first: Value, count: Value) -> tuple[Place, Value]:
    """Where the keys are of `count` from `first` on that a query sees, and how many. The chosen ones are listed."""
    b = e.b
    if not keys.settings["chosen"]:
        return lambda at: b.add(first, at), count
    numbers = e.slot(25, I64)
    listed = e.at(e.scratch, "float32", b.add(numbers, b.and_(numbers, I64(1))))  # of 8 bytes each
    found = Cell(b, I64, I64(0))
    with e.loop(first, b.add(first, count)) as j:
        e.store(listed, "int64", found.get(), j)
        found.set(b.add(found.get(), b.zext(keys.is_chosen(token, j), I64)))
    return lambda at: e.load(listed, "int64", at), found.get()


def _scores(
    e: Emitter, keys: Keys, sequence: Value, head: Value, group: Value, position: Value, place_of: Place,
    rows: list[Value], count: Value,
) -> list[Value]:  # fmt: skip
    """Writes the scores, a row for each head, and gives the largest of each."""
    b, channels = e.b, keys.settings["channels"]
    parts = parts_of(channels, e.machine.lanes)
    for n in range(len(rows)):
        place = keys.query(sequence, b.add(head, I64(n)))
        for start, lanes in parts:
            query = e.load(place, keys.settings["q"], I64(start), lanes)
            e.store(e.scratch, "float32", I64(n * channels + start), query)
    tops = [Cell(b, F32, real(LEAST)) for _ in rows]
    with e.loop(I64(0), count) as at:
        j = place_of(at)
        key = keys.key(keys.row(sequence, j), group)
        loaded = [e.load(key, keys.settings["k"], I64(start), lanes) for start, lanes in parts]
        for n, (row, top) in enumerate(zip(rows, tops, strict=True)):
            sums: dict[int, Value] = {}
            for other, (start, lanes) in zip(loaded, parts, strict=True):
                own = e.load(e.scratch, "float32", I64(n * channels + start), lanes)
                sums[lanes] = e.multiply_add(own, other, sums[lanes]) if lanes in sums else b.fmul(own, other)
            product, *rest = (e.total(value) for value in sums.values())
            for value in rest:
                product = b.fadd(product, value)
            score = keys.score(product, b.add(head, I64(n)), b.sitofp(b.sub(j, position), F32))
            e.store(row, "float32", at, score)
            top.set(most(e, score, top.get()))
    return [top.get() for top in tops]


def _shares(e: Emitter, keys: Keys, head: Value, row: Value, count: Value, top: Value) -> Value:
    """Writes the exponentials of a head's scores in their place, and gives the factor that makes them its shares."""
    b, sinks = e.b, keys.settings["sinks"]
    if sinks:
        top = most(e, top, e.load(keys.sinks, sinks, head))

    def share(at: Value, lanes: int) -> Value:
        value = exp(e, b.fsub(e.load(row, "float32", at, lanes), e.spread(top, lanes)))
        e.store(row, "float32", at, value)
        return value

    total = e.sum(I64(0), count, share)
    if sinks:
        total = b.fadd(total, exp(e, b.fsub(e.load(keys.sinks, sinks, head), top)))
    return b.select(b.fcmp_ordered(">", total, real(0.0)), b.fdiv(real(1.0), total), real(0.0))


def _mix(
    e: Emitter, keys: Keys, sequence: Value, group: Value, place_of: Place, count: Value, rows: list[Value],
    factors: list[Value], place: Value,
) -> None:  # fmt: skip
    """The sums of values by their shares: as many channels at a time as registers hold of all heads."""
    b, size = e.b, keys.settings["values"]
    listed = parts_of(size, e.machine.lanes)
    most_parts = max(1, (e.machine.registers - SPARE) // len(rows))
    for begin in range(0, len(listed), most_parts):
        parts = listed[begin : begin + most_parts]
        sums = [
            [Cell(b, vector(lanes), real(0.0) if lanes == 1 else e.zero(lanes)) for _, lanes in parts] for _ in rows
        ]
        with e.loop(I64(0), count) as at:
            value = keys.value(keys.row(sequence, place_of(at)), group)
            loaded = [e.load(value, keys.settings["v"], I64(start), lanes) for start, lanes in parts]
            for row, cells in zip(rows, sums, strict=True):
                share = e.load(row, "float32", at)
                for cell, other, (_, lanes) in zip(cells, loaded, parts, strict=True):
                    cell.set(e.multiply_add(e.spread(share, lanes), other, cell.get()))
        for n, (cells, factor) in enumerate(zip(sums, factors, strict=True)):
            for cell, (start, lanes) in zip(cells, parts, strict=True):
                mixed = b.fmul(cell.get(), e.spread(factor, lanes))
                e.store(keys.out, keys.settings["q"], b.add(place, I64(n * size + start)), mixed)


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
