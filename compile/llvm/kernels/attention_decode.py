# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false
"""Attention of one query per sequence over its cache (decode). Keys are read once, in order, for many heads.

Keys are processed in tiles: the scores of all heads, four keys at a time; their exponentials; then the values, four
keys at a time. So both caches are read in order. Maxima and sums are updated from tile to tile (Milakov and Gimelshein
2018, "Online normalizer calculation for softmax"). bfloat16 queries and keys are multiplied in pairs if possible.

A long context is divided into spans of keys, so that threads share a sequence. Spans depend on the context only. The
sums, maximum and sum of exponentials of each span and head are stored for `attention_merge` (Dao et al. 2023,
"Flash-Decoding for long-context inference"). Positions are not negative: a query attends to at least its own key.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any

from bringup.compile.llvm.ir.blocks import blocks_of
from bringup.compile.llvm.ir.cell import Cell
from bringup.compile.llvm.ir.dtypes import F32, I64, POINTER
from bringup.compile.llvm.ir.emitter import Emitter, Value, real, suffix
from bringup.compile.llvm.ir.functions import exp, maximum
from bringup.compile.llvm.ir.pairs import LANES, add_pairs, adds_pairs, pairs_or_zeros
from bringup.compile.llvm.ir.vectors import FOUR, four_sums, joined, parts_of
from bringup.compile.llvm.kernels.ahead import Ahead
from bringup.compile.llvm.kernels.keys import LEAST, Keys
from bringup.compile.llvm.kernels.spans import inverse, most_spans, share_of_rows
from bringup.compile.llvm.select.sizes import KEYS, SPAN

Place = Callable[[Value], Value]  # number of a key among those that the query attends to -> its position
Add = Callable[[Value, Value, Value], Value]  # (query, key, sums) -> sums
AT_ONCE = 8  # registers per head whose scores are computed together: accumulators of products with four keys


def attention_decode(e: Emitter, settings: Mapping[str, Any]) -> None:
    """Slots: those of `Keys`; with `spans` also keys of a span, spans per sequence, and the address of the spans.

    `channels` and `values` are the sizes of a head. `together` heads of a group are a part: they share each key in
    registers. Up to `parts` parts share a tile. Scratch memory: see `_Tiles`; then the positions of selected keys.
    """
    b, keys = e.b, Keys(e, settings)
    tiles = _Tiles(e, keys)
    parts = b.udiv(keys.heads, I64(settings["together"]))
    size, spans = (
        (e.slot(25, I64), most_spans(e, keys, e.slot(25, I64))) if settings["spans"] else (I64(1 << 62), I64(1))
    )
    begin, end = share_of_rows(e, b.mul(keys.sequences, spans), parts)
    last = b.udiv(b.add(end, b.sub(parts, I64(1))), parts)
    with e.loop(b.udiv(begin, parts), last) as row:
        before = b.mul(row, parts)
        low, high = e.maximum(b.sub(begin, before), I64(0)), e.minimum(b.sub(end, before), parts)
        sequence, span = b.udiv(row, spans), b.urem(row, spans)
        position = keys.position(sequence)
        first, done = keys.first(position), b.mul(span, size)
        left = b.sub(b.sub(b.add(position, I64(1)), first), done)
        with b.if_then(b.icmp_signed(">", left, I64(0))):
            place_of, count = _places(e, keys, sequence, b.add(first, done), e.minimum(left, size), tiles.end)
            with e.loop(low, high, settings["parts"]) as start:
                stop = e.minimum(b.add(start, I64(settings["parts"])), high)
                tiles.attend((sequence, span), position, start, stop, place_of, count)
    e.finish()


def _places(
    e: Emitter, keys: Keys, token: Value, first: Value, count: Value, listed: Value
) -> tuple[Place, Value]:  # fmt: skip
    """Positions and number of the keys that a query attends to among `count` from `first`; selected ones are listed."""
    b = e.b
    if not keys.settings["chosen"]:
        return lambda at: b.add(first, at), count
    found = Cell(b, I64, I64(0))
    with e.loop(first, b.add(first, count)) as j:
        e.store(listed, "int64", found.get(), j)
        found.set(b.add(found.get(), b.zext(keys.is_chosen(token, j), I64)))
    return lambda at: e.load(listed, "int64", at), found.get()


class _Tiles:
    """Scratch memory: offsets of the values of a tile's keys; for each part, offsets of its values and keys in a row;
    for each head: query, scores in the tile, sums of values, maximum score, sum of exponentials.
    """

    def __init__(self, e: Emitter, keys: Keys) -> None:
        self.e, self.b, self.keys, self.settings = e, e.b, keys, keys.settings
        self.together, self.parts = self.settings["together"], self.settings["parts"]
        self.channels, self.values = self.settings["channels"], self.settings["values"]
        self.pairs = adds_pairs(e.machine, {"x": self.settings["q"], "weight": self.settings["k"]})
        self.dtype = "bfloat16" if self.pairs else "float32"  # of the queries in scratch memory
        self.at_once = e.machine.registers // AT_ONCE  # heads
        self.later_keys, self.later_values = Ahead(e, keys, "k"), Ahead(e, keys, "v")
        self.blocks = blocks_of(self.values, self.settings["v"], e.machine.lanes)
        heads = self.together * self.parts
        self.rows = e.scratch
        self.key_at = e.at(self.rows, "int64", I64(KEYS))
        self.value_at = e.at(self.key_at, "int64", I64(self.parts))
        self.queries = e.at(self.value_at, "int64", I64(self.parts))
        self.scores = e.at(self.queries, "float32", I64(heads * self.channels))
        self.sums = e.at(self.scores, "float32", I64(heads * KEYS))
        self.tops = e.at(self.sums, "float32", I64(heads * self.values))
        self.totals = e.at(self.tops, "float32", I64(heads))
        self.end = e.at(self.totals, "float32", I64(heads + heads * (self.channels + self.values) % 2))

    def attend(
        self, row: tuple[Value, Value], position: Value, start: Value, stop: Value, place_of: Place, count: Value
    ) -> None:  # fmt: skip
        """Computes the heads of parts `start` to `stop`, for `row`: (sequence, one span of its keys)."""
        e, b, sequence = self.e, self.b, row[0]
        parts = b.sub(stop, start)
        with e.loop(I64(0), parts) as part:
            self._begin(row, b.mul(b.add(start, part), I64(self.together)), part)
        last = b.sub(count, I64(1))
        with e.loop(I64(0), e.minimum(self.later_values.rows, count), FOUR) as at:  # prefetches the first values
            rows = self.later_values.four(at, lambda at: self.keys.row(sequence, place_of(e.minimum(at, last))))
            with e.loop(I64(0), parts) as part:
                self.later_values.fetch(rows, e.load(self.value_at, "int64", part))
        with e.loop(I64(0), count, KEYS) as tile:
            here = e.minimum(b.sub(count, tile), I64(KEYS))

            def key(at: Value, tile: Value = tile) -> Value:
                return place_of(e.minimum(b.add(tile, at), last))

            self._score(sequence, position, b.mul(start, I64(self.together)), parts, here, key)
            with e.loop(I64(0), b.mul(parts, I64(self.together))) as own:
                self._share(own, here)
            self._add_values(sequence, parts, here, key)
        with e.loop(I64(0), parts) as part:
            self._finish(row, b.mul(b.add(start, part), I64(self.together)), part)

    def _begin(self, row: tuple[Value, Value], head: Value, part: Value) -> None:
        """Initialises the heads of a part. In the first span, a sink counts as the score of a key without a value."""
        e, b, keys, (sequence, span) = self.e, self.b, self.keys, row
        is_first = b.icmp_signed("==", span, I64(0))
        group, sinks = keys.group(head), self.settings["sinks"]
        e.store(self.key_at, "int64", part, b.mul(group, keys.k_head))
        e.store(self.value_at, "int64", part, b.mul(group, keys.v_head))
        for n in range(self.together):
            own, at = b.add(head, I64(n)), self._of(part, n)
            place, zero = keys.query(sequence, own), b.mul(at, I64(self.channels))
            for start, lanes in parts_of(self.channels, e.machine.lanes):
                query = e.load(place, self.settings["q"], I64(start), lanes)
                e.store(self.queries, self.dtype, b.add(zero, I64(start)), query, is_rounded=True)
            for start, lanes in parts_of(self.values, e.machine.lanes):
                e.store(self.sums, "float32", b.add(b.mul(at, I64(self.values)), I64(start)), e.zero(lanes))
            sink = b.select(is_first, e.load(keys.sinks, sinks, own), real(LEAST)) if sinks else real(LEAST)
            e.store(self.tops, "float32", at, sink)
            e.store(self.totals, "float32", at, b.select(is_first, real(1.0 if sinks else 0.0), real(0.0)))

    def _score(
        self, sequence: Value, position: Value, first: Value, parts: Value, count: Value, place_of: Place
    ) -> None:  # fmt: skip
        """Writes the scores of a tile, padded to a multiple of a vector. `first` is the first part's first head."""
        e, b, keys, settings = self.e, self.b, self.keys, self.settings
        with e.loop(I64(0), count, FOUR) as at:
            rows, distances = list[Value](), list[Value]()
            for n in range(FOUR):  # the last four of a tile may repeat a key
                j = place_of(b.add(at, I64(n)))
                rows.append(keys.row(sequence, j))
                distances.append(b.sitofp(b.sub(j, position), F32))
                e.store(self.rows, "int64", b.add(at, I64(n)), b.mul(rows[-1], keys.v_row))
            starts = [b.mul(row, keys.k_row) for row in rows]
            later = self.later_keys.later(at, lambda at: keys.row(sequence, place_of(at)))
            distance = joined(b, distances)
            with e.loop(I64(0), parts) as part:
                offset = e.load(self.key_at, "int64", part)
                places = [e.at(keys.k, settings["k"], b.add(start, offset)) for start in starts]
                self.later_keys.fetch(later, offset)
                for begin in range(0, self.together, self.at_once):
                    heads = [self._of(part, n) for n in range(begin, min(begin + self.at_once, self.together))]
                    for own, products in zip(heads, self._products(heads, places), strict=True):
                        score = keys.score(products, b.add(first, own), distance)
                        e.store(self.scores, "float32", b.add(b.mul(own, I64(KEYS)), at), score)
        with e.loop(count, self._padded(count)) as at, e.loop(I64(0), b.mul(parts, I64(self.together))) as own:
            e.store(self.scores, "float32", b.add(b.mul(own, I64(KEYS)), at), real(LEAST))

    def _products(self, heads: list[Value], places: list[Value]) -> list[Value]:
        """For each head, the dot products of its query with four keys."""
        e, b = self.e, self.b
        queries = [e.at(self.queries, self.dtype, b.mul(own, I64(self.channels))) for own in heads]
        sums: list[dict[int, list[Value]]] = [{} for _ in heads]  # of each head: lanes -> accumulators of four keys
        for load, lanes, add in self._products_of():
            loaded = [load(place, self.settings["k"]) for place in places]
            for query, found in zip(queries, sums, strict=True):
                factor = load(query, self.dtype)
                terms = found.get(lanes, [e.zero(lanes)] * FOUR)
                found[lanes] = [add(factor, key, term) for key, term in zip(loaded, terms, strict=True)]
        return [reduce(b.fadd, [four_sums(e, vectors) for vectors in found.values()]) for found in sums]

    def _products_of(self) -> list[tuple[Callable[[Value, str], Value], int, Add]]:
        """For consecutive channels: how they are loaded, the lanes of their sums, and how products are added."""
        e = self.e

        def pairs(start: int, count: int) -> tuple[Callable[[Value, str], Value], int, Add]:
            def read(place: Value, _: str) -> Value:
                return pairs_or_zeros(e, place, I64(start), count)

            return read, LANES, lambda one, other, term: add_pairs(e, term, one, other)

        def numbers(start: int, lanes: int) -> tuple[Callable[[Value, str], Value], int, Add]:
            return lambda place, dtype: e.load(place, dtype, I64(start), lanes), lanes, e.multiply_add

        if self.pairs:
            return [pairs(*part) for part in parts_of(self.channels, 2 * LANES)]
        return [numbers(*part) for part in parts_of(self.channels, e.machine.lanes)]

    def _share(self, own: Value, count: Value) -> None:
        """Replaces a head's scores by their exponentials, and rescales its previous sums to the new maximum."""
        e, b, lanes = self.e, self.b, self.e.machine.lanes
        row, size, zeros = e.at(self.scores, "float32", b.mul(own, I64(KEYS))), self._padded(count), e.zero(lanes)
        largest = Cell(b, zeros.type, real(LEAST, zeros))
        with e.loop(I64(0), size, lanes) as at:
            largest.set(maximum(e, e.load(row, "float32", at, lanes), largest.get()))
        top = e.intrinsic(f"llvm.vector.reduce.fmax.{suffix(largest.get())}", F32, [largest.get()])
        before = e.load(self.tops, "float32", own)
        top = maximum(e, top, before)
        e.store(self.tops, "float32", own, top)
        total = Cell(b, zeros.type, zeros)
        with e.loop(I64(0), size, lanes) as at:
            value = exp(e, b.fsub(e.load(row, "float32", at, lanes), e.spread(top, lanes)), is_below=True)
            e.store(row, "float32", at, value)
            total.set(b.fadd(total.get(), value))
        factor = exp(e, b.fsub(before, top), is_below=True)
        sum_before = b.fmul(e.load(self.totals, "float32", own), factor)
        e.store(self.totals, "float32", own, b.fadd(sum_before, e.total(total.get())))
        sums = e.at(self.sums, "float32", b.mul(own, I64(self.values)))
        for start, width in parts_of(self.values, lanes):
            value = e.load(sums, "float32", I64(start), width)
            e.store(sums, "float32", I64(start), b.fmul(value, e.spread(factor, width)))

    def _add_values(self, sequence: Value, parts: Value, count: Value, place_of: Place) -> None:
        """Adds a tile's values, weighted by the exponentials, to all heads: four keys at a time, then one by one."""
        e, b = self.e, self.b
        whole = b.sub(count, b.srem(count, I64(FOUR)))
        for begin, end, together in ((I64(0), whole, FOUR), (whole, count, 1)):
            with e.loop(begin, end, together) as at:
                places = [
                    e.at(self.keys.v, self.settings["v"], e.load(self.rows, "int64", b.add(at, I64(n))))
                    for n in range(together)
                ]
                later = self.later_values.later(at, lambda at: self.keys.row(sequence, place_of(at)))
                with e.loop(I64(0), parts) as part:
                    offset = e.load(self.value_at, "int64", part)
                    self.later_values.fetch(later[:together], offset)
                    self._add(part, at, [e.at(place, self.settings["v"], offset) for place in places])

    def _add(self, part: Value, at: Value, values: list[Value]) -> None:
        """Adds the values of consecutive keys from `at` to a part's heads, a register file of channels at a time."""
        e, b = self.e, self.b
        heads = [self._of(part, n) for n in range(self.together)]
        shares = [e.at(self.scores, "float32", b.add(b.mul(own, I64(KEYS)), at)) for own in heads]
        places = [e.at(self.sums, "float32", b.mul(own, I64(self.values))) for own in heads]
        size = max(len(block.starts) for block in self.blocks)  # vectors: of each head's sums, and of values
        most_blocks = max(1, (e.machine.registers - 1) // (self.together + 1) // size)  # one register: a weight
        for begin in range(0, len(self.blocks), most_blocks):
            some = self.blocks[begin : begin + most_blocks]
            listed = [(start, block.lanes) for block in some for start in block.starts]
            sums = [[e.load(place, "float32", I64(start), lanes) for start, lanes in listed] for place in places]
            for n, value in enumerate(values):
                loaded = [each for block in some for each in block.load(e, value, self.settings["v"])]
                for head, share in enumerate(shares):
                    factor = e.load(share, "float32", I64(n))
                    sums[head] = [
                        e.multiply_add(e.spread(factor, lanes), other, term)
                        for other, term, (_, lanes) in zip(loaded, sums[head], listed, strict=True)
                    ]
            for place, found in zip(places, sums, strict=True):
                for term, (start, _) in zip(found, listed, strict=True):
                    e.store(place, "float32", I64(start), term)

    def _finish(self, row: tuple[Value, Value], head: Value, part: Value) -> None:
        """Writes the weighted mean of values; for a span its sums, maximum score and sum of exponentials."""
        e, b, (sequence, span) = self.e, self.b, row
        spans, to, dtype, size = I64(1), self.keys.out, self.settings["q"], self.values
        if self.settings["spans"]:
            spans, to, dtype, size = e.slot(26, I64), e.slot(27, POINTER), "float32", self.values + SPAN
        place = b.mul(b.add(b.mul(b.add(b.mul(sequence, spans), span), self.keys.heads), head), I64(size))
        for n in range(self.together):
            own, begin = self._of(part, n), b.add(place, I64(n * size))
            total = e.load(self.totals, "float32", own)
            factor = inverse(e, total)
            sums = e.at(self.sums, "float32", b.mul(own, I64(self.values)))
            for block in self.blocks:
                found = [e.load(sums, "float32", I64(start), block.lanes) for start in block.starts]
                for start, value in zip(block.starts, block.in_order(b, found), strict=True):
                    if not self.settings["spans"]:
                        value = b.fmul(value, e.spread(factor, block.lanes))
                    e.store(to, dtype, b.add(begin, I64(start)), value)
            if self.settings["spans"]:
                e.store(to, dtype, b.add(begin, I64(self.values)), e.load(self.tops, "float32", own))
                e.store(to, dtype, b.add(begin, I64(self.values + 1)), total)

    def _padded(self, count: Value) -> Value:
        """`count`, rounded up to a multiple of a vector."""
        b, lanes = self.b, self.e.machine.lanes
        return b.and_(b.add(count, I64(lanes - 1)), I64(-lanes))

    def _of(self, part: Value, n: int) -> Value:
        """The index of head `n` of a part among the heads of the tile."""
        return self.b.add(self.b.mul(part, I64(self.together)), I64(n))
