# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false
"""Attention of packed prompts: some queries of a sequence at a time, one in each lane.

So neither scores nor sums of values are ever added up across a vector, and softmax is that of one lane.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llvmlite import ir

from bringup.compile.llvm.ir.dtypes import I1
from bringup.compile.llvm.ir.emitter import I32, I64, Cell, Emitter, Value, real, vector
from bringup.compile.llvm.ir.functions import exp, most
from bringup.compile.llvm.kernels.keys import LEAST, Keys
from bringup.compile.llvm.select.sizes import QUERY_VECTORS

TILE = 4  # keys, or channels of values, whose sums are in registers at a time


def attention_prefill(e: Emitter, settings: Mapping[str, Any]) -> None:
    """Slots: those of `Keys`; tokens; keys that the queries of a piece of work see, at most.

    Scratch memory has the queries, transposed, in whose place the results are then; the number of each key's row; and
    the scores of all queries with each key. What padding gives is 0.
    """
    b, keys = e.b, Keys(e, settings)
    count = QUERY_VECTORS * e.machine.lanes
    turn = Cell(b, I64, I64(0))  # number of the piece of work: each is that of one thread
    with e.loop(I64(0), keys.sequences) as sequence:
        begin = e.load(keys.starts, "int64", sequence)
        end = e.load(keys.starts, "int64", b.add(sequence, I64(1)))
        with e.loop(begin, end, count) as token, e.loop(I64(0), keys.heads) as head:
            own = b.icmp_unsigned("==", b.urem(turn.get(), e.parts), e.part)
            turn.set(b.add(turn.get(), I64(1)))
            with b.if_then(own):
                _Piece(e, keys, sequence, head, token, end).write()
    _padding(e, keys)
    e.finish()


def _padding(e: Emitter, keys: Keys) -> None:
    """Zeros for the tokens after the last sequence."""
    b = e.b
    width = b.mul(keys.heads, I64(keys.settings["values"]))
    last = e.load(keys.starts, "int64", keys.sequences)
    begin, end = e.share(b.sub(e.slot(25, I64), last))
    place = b.mul(b.add(last, begin), width)
    after = b.mul(b.add(last, end), width)
    e.each(place, after, lambda at, lanes: e.store(keys.out, keys.settings["q"], at, e.zero(lanes)))


class _Piece:
    """Up to `queries` tokens of one sequence and head."""

    def __init__(self, e: Emitter, keys: Keys, sequence: Value, head: Value, token: Value, end: Value) -> None:
        self.e, self.keys, self.sequence, self.head, self.token, self.end = e, keys, sequence, head, token, end
        b, lanes = e.b, e.machine.lanes
        self.lanes, self.width = lanes, QUERY_VECTORS * lanes
        self.group = keys.group(head)
        self.tokens = [e.least(b.add(token, I64(n)), b.sub(end, I64(1))) for n in range(self.width)]
        places = [keys.position(each) for each in self.tokens]
        first, last = places[0], places[0]
        for place in places[1:]:
            first, last = e.least(first, place), e.most(last, place)
        self.first = keys.first(first)
        self.count = b.sub(b.add(last, I64(1)), self.first)
        narrow = [b.trunc(b.sub(place, self.first), I32) for place in places]
        self.at = self._vectors(narrow, I32)  # positions of the queries, from the first key on
        window = b.trunc(e.least(keys.window, I64((1 << 31) - 1)), I32)
        self.begin = [b.sub(each, e.spread(window, lanes)) for each in self.at]  # the last key before each window
        most_channels = max(keys.settings["channels"], keys.settings["values"])
        self.rows = e.at(e.scratch, "float32", I64(most_channels * self.width))
        self.scores = e.at(self.rows, "int64", e.slot(26, I64))

    def write(self) -> None:
        e, b = self.e, self.e.b
        self._queries()
        with e.loop(I64(0), self.count) as at:
            e.store(self.rows, "int64", at, self.keys.row(self.sequence, b.add(self.first, at)))
        least = LEAST / 2 if self.keys.settings["chosen"] else LEAST  # so that a query which sees no key has no shares
        top = [Cell(b, vector(self.lanes), real(least, e.zero(self.lanes))) for _ in range(QUERY_VECTORS)]
        whole = b.sub(self.count, b.srem(self.count, I64(TILE)))
        for begin, end, size in ((I64(0), whole, TILE), (whole, self.count, 1)):
            with e.loop(begin, end, size) as at:
                self._scores(at, size, top)
        sinks = self._sinks()
        tops = [most(e, cell.get(), sink) for cell in top for sink in sinks] or [cell.get() for cell in top]
        total = [Cell(b, vector(self.lanes), e.zero(self.lanes)) for _ in range(QUERY_VECTORS)]
        with e.loop(I64(0), self.count) as at:
            for n, (cell, most_) in enumerate(zip(total, tops, strict=True)):
                share = exp(e, b.fsub(self._score(at, n), most_))
                self._set_score(at, n, share)
                cell.set(b.fadd(cell.get(), share))
        totals = [cell.get() for cell in total]
        for sink in sinks:
            totals = [b.fadd(value, exp(e, b.fsub(sink, most_))) for value, most_ in zip(totals, tops, strict=True)]
        factors = [b.fdiv(real(1.0, value), value) for value in totals]
        if self.keys.settings["chosen"]:  # of a query maybe none
            some = [b.fcmp_ordered(">", value, real(0.0, value)) for value in totals]
            factors = [b.select(seen, each, real(0.0, each)) for seen, each in zip(some, factors, strict=True)]
        self._mix(factors)
        self._give()

    def _queries(self) -> None:
        """Writes the queries, transposed: a channel of all of them after the other."""
        e, b = self.e, self.e.b
        for n, token in enumerate(self.tokens):
            place = self.keys.query(token, self.head)
            with e.loop(I64(0), I64(self.keys.settings["channels"])) as channel:
                value = e.load(place, self.keys.settings["q"], channel)
                e.store(e.scratch, "float32", b.add(b.mul(channel, I64(self.width)), I64(n)), value)

    def _sinks(self) -> list[Value]:
        """The score of the key without a value, in each lane; none where there is none."""
        dtype = self.keys.settings["sinks"]
        return [self.e.spread(self.e.load(self.keys.sinks, dtype, self.head), self.lanes)] if dtype else []

    def _scores(self, at: Value, count: int, top: list[Cell]) -> None:
        """Scores of `count` keys from `at` on."""
        e, b = self.e, self.e.b
        keys = [self.keys.key(self._row(b.add(at, I64(n))), self.group) for n in range(count)]
        sums = [[Cell(b, vector(self.lanes), e.zero(self.lanes)) for _ in range(QUERY_VECTORS)] for _ in keys]
        with e.loop(I64(0), I64(self.keys.settings["channels"])) as channel:
            place = b.mul(channel, I64(self.width))
            own = [
                e.load(e.scratch, "float32", b.add(place, I64(n * self.lanes)), self.lanes)
                for n in range(QUERY_VECTORS)
            ]
            for key, cells in zip(keys, sums, strict=True):
                other = e.spread(e.load(key, self.keys.settings["k"], channel), self.lanes)
                for query, cell in zip(own, cells, strict=True):
                    cell.set(e.multiply_add(query, other, cell.get()))
        for number, cells in enumerate(sums):
            j = b.add(at, I64(number))
            narrow = e.spread(b.trunc(j, I32), self.lanes)
            for n, cell in enumerate(cells):
                distance = b.sitofp(b.sub(narrow, self.at[n]), vector(self.lanes))
                score = self.keys.score(cell.get(), self.head, distance)
                seen = b.and_(b.icmp_signed("<=", narrow, self.at[n]), b.icmp_signed(">", narrow, self.begin[n]))
                if self.keys.settings["chosen"]:
                    seen = b.and_(seen, self._chosen(j, n))
                score = b.select(seen, score, real(LEAST, score))
                self._set_score(j, n, score)
                top[n].set(most(e, score, top[n].get()))

    def _chosen(self, at: Value, n: int) -> Value:
        """Whether each query of a vector may see key number `at`."""
        tokens = self.tokens[n * self.lanes : (n + 1) * self.lanes]
        (found,) = self._vectors([self.keys.is_chosen(token, self.e.b.add(self.first, at)) for token in tokens], I1)
        return found

    def _mix(self, factors: list[Value]) -> None:
        """The sums of values by their shares, some channels at a time."""
        size = self.keys.settings["values"]
        whole = size - size % TILE
        with self.e.loop(I64(0), I64(whole), TILE) as channel:
            self._mixed(channel, TILE, factors)
        with self.e.loop(I64(whole), I64(size)) as channel:
            self._mixed(channel, 1, factors)

    def _mixed(self, channel: Value, count: int, factors: list[Value]) -> None:
        e, b = self.e, self.e.b
        sums = [[Cell(b, vector(self.lanes), e.zero(self.lanes)) for _ in range(QUERY_VECTORS)] for _ in range(count)]
        with e.loop(I64(0), self.count) as at:
            shares = [self._score(at, n) for n in range(QUERY_VECTORS)]
            value = self.keys.value(self._row(at), self.group)
            for number, cells in enumerate(sums):
                one = e.load(value, self.keys.settings["v"], b.add(channel, I64(number)))
                other = e.spread(one, self.lanes)
                for share, cell in zip(shares, cells, strict=True):
                    cell.set(e.multiply_add(share, other, cell.get()))
        for number, cells in enumerate(sums):
            place = b.mul(b.add(channel, I64(number)), I64(self.width))
            for n, (cell, factor) in enumerate(zip(cells, factors, strict=True)):
                e.store(e.scratch, "float32", b.add(place, I64(n * self.lanes)), b.fmul(cell.get(), factor))

    def _give(self) -> None:
        """Writes what is in the place of the queries to the tokens' rows."""
        e, b, size = self.e, self.e.b, self.keys.settings["values"]
        with e.loop(I64(0), e.least(I64(self.width), b.sub(self.end, self.token))) as n:
            row = b.add(b.mul(b.add(self.token, n), self.keys.heads), self.head)
            with e.loop(I64(0), I64(size)) as channel:
                value = e.load(e.scratch, "float32", b.add(b.mul(channel, I64(self.width)), n))
                e.store(self.keys.out, self.keys.settings["q"], b.add(b.mul(row, I64(size)), channel), value)

    def _row(self, at: Value) -> Value:
        return self.e.load(self.rows, "int64", at)

    def _place(self, at: Value, n: int) -> Value:
        return self.e.b.add(self.e.b.mul(at, I64(self.width)), I64(n * self.lanes))

    def _score(self, at: Value, n: int) -> Value:
        return self.e.load(self.scores, "float32", self._place(at, n), self.lanes)

    def _set_score(self, at: Value, n: int, value: Value) -> None:
        self.e.store(self.scores, "float32", self._place(at, n), value)

    def _vectors(self, numbers: list[Value], kind: Any) -> list[Value]:
        found: list[Value] = []
        for begin in range(0, len(numbers), self.lanes):
            value = vector(self.lanes, kind)(ir.Undefined)
            for lane in range(self.lanes):
                value = self.e.b.insert_element(value, numbers[begin + lane], I32(lane))
            found.append(value)
        return found
