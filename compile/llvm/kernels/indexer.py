# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""The selection of keys for attention (DeepSeek-V3.2); see `bringup.graphs.ops.topk_keys`.

Keys after a query are not read, and their results are undefined.

N tokens · B sequences · L keys · H heads · D channels
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from bringup.compile.llvm.ir.cell import Cell
from bringup.compile.llvm.ir.dtypes import F32, I32, I64, POINTER
from bringup.compile.llvm.ir.emitter import Emitter, Value, real
from bringup.compile.llvm.ir.functions import maximum
from bringup.compile.llvm.select.sizes import BINS
from bringup.graphs.core.step import BLOCK

DIGIT = 8  # bits


def cached_rows(e: Emitter, settings: Mapping[str, Any]) -> None:
    """Slots: cache, dense; block table; lengths; out, dense; B; columns of the table; elements of a row.

    `in_order`: blocks are 0, 1, …. Rows past a sequence's length are not written.
    """
    b, dtype = e.b, settings["cache"]
    cache, table, lengths, out = (e.slot(at, POINTER) for at in (0, 1, 2, 3))
    sequences, columns, width = (e.slot(at, I64) for at in (4, 5, 6))
    with e.loop(I64(0), sequences) as sequence:
        begin, end = e.share(e.minimum(e.load(lengths, "int64", sequence), b.mul(columns, I64(BLOCK))))
        with e.loop(begin, end) as at:
            row = at
            if not settings["in_order"]:
                entry = b.add(b.mul(sequence, columns), b.udiv(at, I64(BLOCK)))
                row = b.add(b.mul(e.load(table, "int64", entry), I64(BLOCK)), b.urem(at, I64(BLOCK)))
            source = e.at(cache, dtype, b.mul(row, width))
            number = b.add(b.mul(b.mul(sequence, columns), I64(BLOCK)), at)
            place = e.at(out, dtype, b.mul(number, width))
            e.each(I64(0), width, lambda k, lanes: e.store(place, dtype, k, e.load(source, dtype, k, lanes)))
    e.finish()


def index_scores(e: Emitter, settings: Mapping[str, Any]) -> None:
    """Slots: q, its strides of tokens and heads; k, its strides of sequences and rows; weights, their stride of
    tokens; positions; starts; out, dense; N; B; L; H; D. A thread computes some keys of each query.
    """
    b = e.b
    q, k, weights, positions, starts, out = (e.slot(at, POINTER) for at in (0, 3, 6, 8, 9, 10))
    q_row, q_head, k_sequence, k_row, stride = (e.slot(at, I64) for at in (1, 2, 4, 5, 7))
    tokens, sequences, length, heads, channels = (e.slot(at, I64) for at in (11, 12, 13, 14, 15))
    with e.loop(I64(0), tokens) as token:
        sequence = token
        if not settings["decode"]:
            before = Cell(b, I64, I64(0))  # sequences that end before the token
            with e.loop(I64(1), b.add(sequences, I64(1))) as n:
                ended = b.icmp_signed(">=", token, e.load(starts, "int64", n))
                before.set(b.add(before.get(), b.zext(ended, I64)))
            sequence = before.get()
        is_own = b.icmp_signed("<", sequence, sequences)
        seen = e.minimum(b.add(e.load(positions, "int64", token), I64(1)), length)
        begin, end = e.share(b.select(is_own, seen, I64(0)))
        with e.loop(begin, end) as at:
            key = e.at(k, settings["k"], b.add(b.mul(sequence, k_sequence), b.mul(at, k_row)))
            total = Cell(b, F32, real(0.0))
            with e.loop(I64(0), heads) as head:
                query = e.at(q, settings["q"], b.add(b.mul(token, q_row), b.mul(head, q_head)))

                def product(c: Value, lanes: int, query: Value = query, key: Value = key) -> Value:
                    return b.fmul(e.load(query, settings["q"], c, lanes), e.load(key, settings["k"], c, lanes))

                score = maximum(e, e.sum(I64(0), channels, product), real(0.0))
                weight = e.load(weights, settings["weights"], b.add(b.mul(token, stride), head))
                total.set(e.multiply_add(score, weight, total.get()))
            e.store(out, "float32", b.add(b.mul(token, length), at), total.get())
    e.finish()


def top_keys(e: Emitter, settings: Mapping[str, Any]) -> None:
    """Slots: scores, their stride; positions; out, dense; N; L; count. Scratch memory has `BINS` counters.

    A radix selection: scores are mapped to integers of the same order. The bits of the lowest selected score are found
    digit by digit, from the counts of keys for each next digit after the known prefix.
    """
    b = e.b
    scores, positions, out = (e.slot(at, POINTER) for at in (0, 2, 3))
    stride, tokens, length, count = (e.slot(at, I64) for at in (1, 4, 5, 6))
    begin, end = e.share(tokens)
    with e.loop(begin, end) as token:
        own = e.at(scores, settings["scores"], b.mul(token, stride))
        seen = e.minimum(b.add(e.load(positions, "int64", token), I64(1)), length)

        def bits(at: Value, own: Value = own) -> Value:
            return _ordered(e, e.load(own, settings["scores"], at))

        prefix, room = Cell(b, I64, I64(0)), Cell(b, I64, count)  # room: keys to select among those with the prefix
        for shift in range(32 - DIGIT, -1, -DIGIT):
            _digit(e, bits, seen, shift, prefix, room)
        place = b.mul(token, length)
        with e.loop(I64(0), length) as at:
            is_seen = b.icmp_signed("<", at, seen)
            with b.if_else(is_seen) as (inside, after):
                with inside:
                    value = bits(at)
                    is_last = b.and_(b.icmp_signed("==", value, prefix.get()), b.icmp_signed(">", room.get(), I64(0)))
                    room.set(b.sub(room.get(), b.zext(is_last, I64)))
                    chosen = b.or_(b.icmp_signed(">", value, prefix.get()), is_last)
                    e.store(out, "bool", b.add(place, at), chosen)
                with after:
                    e.store(out, "bool", b.add(place, at), b.icmp_signed("!=", I64(0), I64(0)))
    e.finish()


def selected_positions(e: Emitter, settings: Mapping[str, Any]) -> None:
    """Slots: selected, dense; positions; out, dense; N; L; count."""
    b = e.b
    selected, positions, out = (e.slot(at, POINTER) for at in (0, 1, 2))
    tokens, length, count = (e.slot(at, I64) for at in (3, 4, 5))
    begin, end = e.share(tokens)
    with e.loop(begin, end) as token:
        seen = e.minimum(b.add(e.load(positions, "int64", token), I64(1)), length)
        own, place = b.mul(token, length), b.mul(token, count)
        found = Cell(b, I64, I64(0))
        with e.loop(I64(0), seen) as at:
            is_key = e.load(selected, "bool", b.add(own, at))
            with b.if_then(b.and_(is_key, b.icmp_signed("<", found.get(), count))):
                e.store(out, "int64", b.add(place, found.get()), at)
                found.set(b.add(found.get(), I64(1)))
        with e.loop(found.get(), count) as at:
            e.store(out, "int64", b.add(place, at), length)
    e.finish()


def marked_keys(e: Emitter, settings: Mapping[str, Any]) -> None:
    """Slots: positions, dense; out, dense; N; K; L."""
    b = e.b
    positions, out = (e.slot(at, POINTER) for at in (0, 1))
    tokens, count, length = (e.slot(at, I64) for at in (2, 3, 4))
    begin, end = e.share(tokens)
    with e.loop(begin, end) as token:
        own = b.mul(token, length)
        with e.loop(I64(0), length) as at:
            e.store(out, "bool", b.add(own, at), b.icmp_signed("!=", I64(0), I64(0)))
        with e.loop(I64(0), count) as n:
            at = e.load(positions, "int64", b.add(b.mul(token, count), n))
            is_key = b.icmp_signed("<", at, length)
            with b.if_then(is_key):
                e.store(out, "bool", b.add(own, at), is_key)
    e.finish()


def _digit(e: Emitter, bits: Callable[[Value], Value], seen: Value, shift: int, prefix: Cell, room: Cell) -> None:
    """Extends the prefix by the digit of the lowest selected score; all digits are 0 if all keys are selected."""
    b = e.b
    with e.loop(I64(0), I64(BINS)) as n:
        e.store(e.scratch, "int64", n, I64(0))
    with e.loop(I64(0), seen) as at:
        value = bits(at)
        same = b.icmp_signed("==", b.ashr(value, I64(shift + DIGIT)), b.ashr(prefix.get(), I64(shift + DIGIT)))
        digit = b.and_(b.ashr(value, I64(shift)), I64(BINS - 1))
        e.store(e.scratch, "int64", digit, b.add(e.load(e.scratch, "int64", digit), b.zext(same, I64)))
    found, above = Cell(b, I64, I64(-1)), Cell(b, I64, I64(0))  # keys of higher digits
    with e.loop(I64(0), I64(BINS)) as n:
        digit = b.sub(I64(BINS - 1), n)
        through = b.add(above.get(), e.load(e.scratch, "int64", digit))
        is_open = b.icmp_signed("<", found.get(), I64(0))
        is_it = b.and_(is_open, b.icmp_signed(">=", through, room.get()))
        found.set(b.select(is_it, digit, found.get()))
        above.set(b.select(b.or_(is_it, b.icmp_signed(">=", found.get(), I64(0))), above.get(), through))
    room.set(b.sub(room.get(), above.get()))
    prefix.set(b.or_(prefix.get(), b.shl(e.maximum(found.get(), I64(0)), I64(shift))))


def _ordered(e: Emitter, value: Value) -> Value:
    """A non-negative integer with the order of float32; -0 equals 0."""
    b = e.b
    bits = b.bitcast(b.fadd(value, real(0.0)), I32)
    is_below = b.icmp_signed("<", bits, I32(0))
    return b.zext(b.select(is_below, b.not_(bits), b.or_(bits, I32(0x80000000))), I64)
