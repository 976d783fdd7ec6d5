# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false
"""Attention of packed prompts (prefill): a block of queries of one sequence and head at a time, in tiles of keys.

Scores have one query per lane, so softmax needs no reduction across lanes. Sums of values have one channel per lane, so
values are read as they are stored. Maxima and sums are updated from tile to tile (Milakov and Gimelshein 2018, "Online
normalizer calculation for softmax"). If the processor has dot products of bfloat16 pairs, queries and keys of that
dtype are not converted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from llvmlite import ir

from bringup.compile.llvm.ir.blocks import blocks_of
from bringup.compile.llvm.ir.cell import Cell
from bringup.compile.llvm.ir.dtypes import F32, I1, I32, I64
from bringup.compile.llvm.ir.emitter import Emitter, Value, real
from bringup.compile.llvm.ir.functions import exp, maximum
from bringup.compile.llvm.ir.lanes import vector
from bringup.compile.llvm.ir.pairs import add_pairs, adds_pairs, last_pair, pairs_at
from bringup.compile.llvm.ir.vectors import joined
from bringup.compile.llvm.kernels.keys import LEAST, Keys
from bringup.compile.llvm.kernels.linear_tiles import transposed
from bringup.compile.llvm.select.sizes import KEYS, QUERY_VECTORS

TILE = 4  # queries whose sums of values are in registers at a time


def attention_prefill(e: Emitter, settings: Mapping[str, Any]) -> None:
    """Slots: those of `Keys`; tokens; the maximum number of keys that a block of queries attends to.

    Scratch memory has the queries, transposed; of each query its sums of values, their factor, and the number of keys
    that it attends to; the scores of all queries with a tile's keys; the row of each key. The results of padding are 0.
    """
    b, keys = e.b, Keys(e, settings)
    count = QUERY_VECTORS * e.machine.lanes
    turn = Cell(b, I64, I64(0))  # number of the block of queries, which determines its thread
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
    """A block of up to `width` tokens of one sequence and head."""

    def __init__(self, e: Emitter, keys: Keys, sequence: Value, head: Value, token: Value, end: Value) -> None:
        self.e, self.keys, self.sequence, self.head, self.token, self.end = e, keys, sequence, head, token, end
        b, lanes = e.b, e.machine.lanes
        self.lanes, self.width = lanes, QUERY_VECTORS * lanes
        self.group = keys.group(head)
        self.tokens = [e.minimum(b.add(token, I64(n)), b.sub(end, I64(1))) for n in range(self.width)]
        places = [keys.position(each) for each in self.tokens]
        first, last = places[0], places[0]
        for place in places[1:]:
            first, last = e.minimum(first, place), e.maximum(last, place)
        self.first = keys.first(first)
        self.count = b.sub(b.add(last, I64(1)), self.first)
        narrow = [b.trunc(b.sub(place, self.first), I32) for place in places]
        self.at = self._vectors(narrow, I32)  # positions of the queries, relative to the first key
        earlier = [e.minimum(keys.earlier(place), I64((1 << 31) - 1)) for place in places]
        earlier = self._vectors([b.trunc(each, I32) for each in earlier], I32)
        self.begin = [b.sub(at, before) for at, before in zip(self.at, earlier, strict=True)]  # the first keys
        settings = keys.settings
        self.pairs = adds_pairs(e.machine, {"x": settings["q"], "weight": settings["k"]})
        self.blocks = blocks_of(settings["values"], settings["v"], lanes)
        self.sums = e.at(e.scratch, "float32", I64(settings["channels"] * self.width))
        self.factors = e.at(self.sums, "float32", I64(settings["values"] * self.width))
        self.scores = e.at(self.factors, "float32", I64(self.width))
        self.seen = e.at(self.scores, "float32", I64(KEYS * self.width))
        self.rows = e.at(self.seen, "int64", I64(self.width))
        for n, place in enumerate(places):
            e.store(self.seen, "int64", I64(n), b.sub(b.add(place, I64(1)), self.first))

    def write(self) -> None:
        e, b, size = self.e, self.e.b, self.keys.settings["values"]
        self._queries()
        with e.loop(I64(0), self.count) as at:
            e.store(self.rows, "int64", at, self.keys.row(self.sequence, b.add(self.first, at)))
        e.each(I64(0), I64(size * self.width), lambda at, lanes: e.store(self.sums, "float32", at, e.zero(lanes)))
        # Larger than a masked score, so a masked key has weight 0 even if all keys are masked.
        least, sinks = real(LEAST / 2, e.zero(self.lanes)), self._sinks()
        top = [
            Cell(b, vector(self.lanes), maximum(e, sinks[0], least) if sinks else least) for _ in range(QUERY_VECTORS)
        ]
        total = [Cell(b, vector(self.lanes), e.zero(self.lanes)) for _ in top]
        for cell, most_ in zip(total, top, strict=True) if sinks else ():
            cell.set(exp(e, b.fsub(sinks[0], most_.get()), is_below=True))
        with e.loop(I64(0), self.count, KEYS) as begin:
            end = e.minimum(b.add(begin, I64(KEYS)), self.count)
            self._tile(begin, end, top, total)
        for n, cell in enumerate(total):  # a query may attend to no selected key
            value = cell.get()
            seen = b.fcmp_unordered("une", value, real(0.0, value))
            factor = b.select(seen, b.fdiv(real(1.0, value), value), real(0.0, value))
            e.store(self.factors, "float32", I64(n * self.lanes), factor)
        self._give()

    def _tile(self, begin: Value, end: Value, top: list[Cell], total: list[Cell]) -> None:
        """Computes the scores of keys `begin` to `end` and their exponentials, and adds their values."""
        e, b = self.e, self.e.b
        before = [cell.get() for cell in top]
        together = e.machine.registers // 2 // QUERY_VECTORS  # keys: half of the registers are accumulators
        whole = b.sub(end, b.srem(b.sub(end, begin), I64(together)))
        for start, stop, size in ((begin, whole, together), (whole, end, 1)):
            with e.loop(start, stop, size) as at:
                self._scores(begin, at, size, top)
        tops = [cell.get() for cell in top]
        for n, (cell, old, new) in enumerate(zip(total, before, tops, strict=True)):
            factor = exp(e, b.fsub(old, new), is_below=True)
            e.store(self.factors, "float32", I64(n * self.lanes), factor)
            cell.set(b.fmul(cell.get(), factor))
        with e.loop(I64(0), b.sub(end, begin)) as at:
            for n, (cell, new) in enumerate(zip(total, tops, strict=True)):
                score = e.load(self.scores, "float32", self._place(at, n), self.lanes)
                share = exp(e, b.fsub(score, new), is_below=True)
                e.store(self.scores, "float32", self._place(at, n), share)
                cell.set(b.fadd(cell.get(), share))
        with e.loop(I64(0), I64(self.width), TILE) as query:
            self._mix(begin, end, query)

    def _queries(self) -> None:
        """Writes the queries, transposed: for each channel, or pair of channels, the elements of all queries."""
        e, b, dtype = self.e, self.e.b, self.keys.settings["q"]
        channels = self.keys.settings["channels"]
        places = [self.keys.query(token, self.head) for token in self.tokens]

        def write(k: Value, count: int, read: Callable[[Value], Value]) -> None:
            for begin in range(0, self.width, self.lanes):
                loaded = [read(place) for place in places[begin : begin + self.lanes]]
                for n, value in enumerate(transposed(e, loaded) if count > 1 else [joined(b, loaded)]):
                    e.store(e.scratch, "float32", b.add(b.mul(b.add(k, I64(n)), I64(self.width)), I64(begin)), value)

        if not self.pairs:
            e.each(I64(0), I64(channels), lambda k, count: write(k, count, lambda at: e.load(at, dtype, k, count)))
            return
        e.each(I64(0), I64(channels // 2), lambda k, count: write(
            k, count, lambda at: b.bitcast(pairs_at(e, at, b.mul(k, I64(2)), count), vector(count))))  # fmt: skip
        if channels % 2:
            write(I64(channels // 2), 1, lambda at: b.bitcast(last_pair(e, at, I64(channels - 1)), F32))

    def _sinks(self) -> list[Value]:
        """The score of the sink in each lane; an empty list if there is none."""
        dtype = self.keys.settings["sinks"]
        return [self.e.spread(self.e.load(self.keys.sinks, dtype, self.head), self.lanes)] if dtype else []

    def _scores(self, begin: Value, at: Value, count: int, top: list[Cell]) -> None:
        """Writes the scores of `count` keys from `at`. `begin` is the first key of the tile."""
        e, b = self.e, self.e.b
        for number, cells in enumerate(self._products(at, count)):
            j = b.add(at, I64(number))
            narrow = e.spread(b.trunc(j, I32), self.lanes)
            for n, product in enumerate(cells):
                distance = b.sitofp(b.sub(narrow, self.at[n]), vector(self.lanes))
                score = self.keys.score(product, self.head, distance)
                seen = b.and_(b.icmp_signed("<=", narrow, self.at[n]), b.icmp_signed(">=", narrow, self.begin[n]))
                if self.keys.settings["chosen"]:
                    seen = b.and_(seen, self._chosen(j, n))
                score = b.select(seen, score, real(LEAST, score))
                e.store(self.scores, "float32", self._place(b.sub(j, begin), n), score)
                top[n].set(maximum(e, score, top[n].get()))

    def _products(self, at: Value, count: int) -> list[list[Value]]:
        """The dot products of `count` keys from `at` with all queries."""
        e, b, channels, dtype = self.e, self.e.b, self.keys.settings["channels"], self.keys.settings["k"]
        keys = [self.keys.key(self._row(b.add(at, I64(n))), self.group) for n in range(count)]
        sums = [[Cell(b, vector(self.lanes), e.zero(self.lanes)) for _ in range(QUERY_VECTORS)] for _ in keys]

        def add(k: Value, read: Callable[[Value], Value]) -> None:
            place = b.mul(k, I64(self.width))
            own = [
                e.load(e.scratch, "float32", b.add(place, I64(n * self.lanes)), self.lanes)
                for n in range(QUERY_VECTORS)
            ]
            for key, cells in zip(keys, sums, strict=True):
                other = e.spread(read(key), self.lanes)
                for query, cell in zip(own, cells, strict=True):
                    cell.set(
                        add_pairs(e, cell.get(), query, other)
                        if self.pairs
                        else e.multiply_add(query, other, cell.get())
                    )

        with e.loop(I64(0), I64(channels // 2 if self.pairs else channels)) as k:
            add(k, lambda at: pairs_at(e, at, b.mul(k, I64(2)), 1) if self.pairs else e.load(at, dtype, k))
        if self.pairs and channels % 2:
            add(I64(channels // 2), lambda at: last_pair(e, at, I64(channels - 1)))
        return [[cell.get() for cell in cells] for cells in sums]

    def _chosen(self, at: Value, n: int) -> Value:
        """Whether each query of vector `n` attends to key number `at`."""
        tokens = self.tokens[n * self.lanes : (n + 1) * self.lanes]
        (found,) = self._vectors([self.keys.is_chosen(token, self.e.b.add(self.first, at)) for token in tokens], I1)
        return found

    def _mix(self, begin: Value, end: Value, query: Value) -> None:
        """Adds the values of a tile to the sums of TILE queries, up to the last key that one of them attends to."""
        e, b, size = self.e, self.e.b, self.keys.settings["values"]
        seen = e.load(self.seen, "int64", query)
        for n in range(1, TILE):
            seen = e.maximum(seen, e.load(self.seen, "int64", b.add(query, I64(n))))
        last = e.minimum(seen, end)
        places = [e.at(self.sums, "float32", b.mul(b.add(query, I64(n)), I64(size))) for n in range(TILE)]
        factors = [e.load(self.factors, "float32", b.add(query, I64(n))) for n in range(TILE)]
        vectors = max(len(block.starts) for block in self.blocks)
        most_blocks = max(1, (e.machine.registers // 2) // TILE // vectors)  # half of the registers are accumulators
        for start in range(0, len(self.blocks), most_blocks):
            some = self.blocks[start : start + most_blocks]
            listed = [(at, block.lanes) for block in some for at in block.starts]
            sums = [
                [
                    Cell(b, vector(lanes), b.fmul(e.load(place, "float32", I64(at), lanes), e.spread(factor, lanes)))
                    for at, lanes in listed
                ]
                for place, factor in zip(places, factors, strict=True)
            ]
            with e.loop(begin, last) as at:
                value = self.keys.value(self._row(at), self.group)
                loaded = [each for block in some for each in block.load(e, value, self.keys.settings["v"])]
                place = b.add(b.mul(b.sub(at, begin), I64(self.width)), query)
                for n, cells in enumerate(sums):
                    share = e.load(self.scores, "float32", b.add(place, I64(n)))
                    for cell, other, (_, lanes) in zip(cells, loaded, listed, strict=True):
                        cell.set(e.multiply_add(e.spread(share, lanes), other, cell.get()))
            for place, cells in zip(places, sums, strict=True):
                for cell, (at, _) in zip(cells, listed, strict=True):
                    e.store(place, "float32", I64(at), cell.get())

    def _give(self) -> None:
        """Writes the sums, multiplied by their factors, to the rows of the tokens."""
        e, b, size = self.e, self.e.b, self.keys.settings["values"]
        with e.loop(I64(0), e.minimum(I64(self.width), b.sub(self.end, self.token))) as n:
            row = b.mul(b.add(b.mul(b.add(self.token, n), self.keys.heads), self.head), I64(size))
            place, factor = e.at(self.sums, "float32", b.mul(n, I64(size))), e.load(self.factors, "float32", n)
            for block in self.blocks:
                found = [e.load(place, "float32", I64(at), block.lanes) for at in block.starts]
                for at, value in zip(block.starts, block.in_order(b, found), strict=True):
                    value = b.fmul(value, e.spread(factor, block.lanes))
                    e.store(self.keys.out, self.keys.settings["q"], b.add(row, I64(at)), value)

    def _row(self, at: Value) -> Value:
        return self.e.load(self.rows, "int64", at)

    def _place(self, at: Value, n: int) -> Value:
        return self.e.b.add(self.e.b.mul(at, I64(self.width)), I64(n * self.lanes))

    def _vectors(self, numbers: list[Value], kind: Any) -> list[Value]:
        found: list[Value] = []
        for begin in range(0, len(numbers), self.lanes):
            value = vector(self.lanes, kind)(ir.Undefined)
            for lane in range(self.lanes):
                value = self.e.b.insert_element(value, numbers[begin + lane], I32(lane))
            found.append(value)
        return found
