# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false
"""Attention of one query a sequence over its cache: keys are read once, in order, for many heads.

Keys pass in tiles. Of a tile all heads get their scores, key by key; then each head its share of the values, which are
in the processor's cache. Largest scores, sums of exponentials and sums of values go on from tile to tile (Milakov and
Gimelshein 2018, "Online normalizer calculation for softmax").

A long context is divided into spans of keys, by the context alone, so that threads share one sequence's keys. Of each
span a head's sums, largest score and sum of exponentials are stored, which `attention_merge` puts together (Dao et al.
2023, "Flash-Decoding for long-context inference"). A query is at position 0 or later: it sees at least its own key.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any

from bringup.compile.llvm.ir.emitter import F32, I64, POINTER, Cell, Emitter, Value, real, size_of, suffix, vector
from bringup.compile.llvm.ir.functions import exp, most
from bringup.compile.llvm.ir.vectors import FOUR, four_sums, joined, parts_of
from bringup.compile.llvm.kernels.keys import LEAST, Keys
from bringup.compile.llvm.kernels.spans import inverse, most_spans, share_of_rows
from bringup.compile.llvm.select.sizes import KEYS, SPAN

Place = Callable[[Value], Value]  # number of a key that the query sees -> its position
LINE = 64  # bytes of a cache line
AT_ONCE = 2  # heads of which they are, so that sums of products with them and the keys are in registers


def attention_decode(e: Emitter, settings: Mapping[str, Any]) -> None:
    """Slots: those of `Keys`; with `spans` also the keys of one, how many a sequence may have, and their place.
    `channels` and `values` are of a head.

    `together` heads of a group share each key that is in registers, and are a part; up to `parts` pass over a tile.
    With `fetches` a part has all heads of a group, and asks for a tile's values while it computes the scores.
    Scratch memory: see `_Tiles`; then, where keys are chosen, their positions.
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
        low, high = e.most(b.sub(begin, before), I64(0)), e.least(b.sub(end, before), parts)
        sequence, span = b.udiv(row, spans), b.urem(row, spans)
        position = keys.position(sequence)
        first, done = keys.first(position), b.mul(span, size)
        left = b.sub(b.sub(b.add(position, I64(1)), first), done)
        with b.if_then(b.icmp_signed(">", left, I64(0))):
            place_of, count = _places(e, keys, sequence, b.add(first, done), e.least(left, size), tiles.end)
            with e.loop(low, high, settings["parts"]) as start:
                stop = e.least(b.add(start, I64(settings["parts"])), high)
                tiles.attend((sequence, span), position, start, stop, place_of, count)
    e.finish()


def _places(
    e: Emitter, keys: Keys, token: Value, first: Value, count: Value, listed: Value
) -> tuple[Place, Value]:  # fmt: skip
    """Where the keys are of `count` from `first` on that a query sees, and how many. The chosen ones are listed."""
    b = e.b
    if not keys.settings["chosen"]:
        return lambda at: b.add(first, at), count
    found = Cell(b, I64, I64(0))
    with e.loop(first, b.add(first, count)) as j:
        e.store(listed, "int64", found.get(), j)
        found.set(b.add(found.get(), b.zext(keys.is_chosen(token, j), I64)))
    return lambda at: e.load(listed, "int64", at), found.get()


class _Tiles:
    """Scratch memory: where a tile's values begin; where those of each part's group do, in a row, and its keys; of each
    head its query, its scores in a tile, its sums of values, its largest score, its sum of exponentials."""

    def __init__(self, e: Emitter, keys: Keys) -> None:
        self.e, self.b, self.keys, self.settings = e, e.b, keys, keys.settings
        self.together, self.parts = self.settings["together"], self.settings["parts"]
        self.channels, self.values = self.settings["channels"], self.settings["values"]
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
        """What the heads of the parts from `start` to `stop` give, of a sequence and one of its spans."""
        e, b, sequence = self.e, self.b, row[0]
        parts = b.sub(stop, start)
        with e.loop(I64(0), parts) as part:
            self._begin(row, b.mul(b.add(start, part), I64(self.together)), part)
        with e.loop(I64(0), count, KEYS) as tile:
            here = e.least(b.sub(count, tile), I64(KEYS))
            first = b.mul(start, I64(self.together))
            self._score(sequence, position, first, parts, here, lambda at, tile=tile: place_of(b.add(tile, at)))
            with e.loop(I64(0), parts) as part:
                self._add_values(part, here)
        with e.loop(I64(0), parts) as part:
            self._finish(row, b.mul(b.add(start, part), I64(self.together)), part)

    def _begin(self, row: tuple[Value, Value], head: Value, part: Value) -> None:
        """Before the first tile; a sink counts as a score whose key has no value, in the first span."""
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
                e.store(self.queries, "float32", b.add(zero, I64(start)), query)
            for start, lanes in parts_of(self.values, e.machine.lanes):
                e.store(self.sums, "float32", b.add(b.mul(at, I64(self.values)), I64(start)), e.zero(lanes))
            sink = b.select(is_first, e.load(keys.sinks, sinks, own), real(LEAST)) if sinks else real(LEAST)
            e.store(self.tops, "float32", at, sink)
            e.store(self.totals, "float32", at, b.select(is_first, real(1.0 if sinks else 0.0), real(0.0)))

    def _score(
        self, sequence: Value, position: Value, first: Value, parts: Value, count: Value, place_of: Place
    ) -> None:  # fmt: skip
        """Writes the scores of a tile; `first` is the first part's first head."""
        e, b, keys, settings = self.e, self.b, self.keys, self.settings
        last = b.sub(count, I64(1))
        with e.loop(I64(0), count, FOUR) as at:
            rows, distances = list[Value](), list[Value]()
            for n in range(FOUR):  # of the last four of a tile, some may be the same key
                j = place_of(e.least(b.add(at, I64(n)), last))
                rows.append(keys.row(sequence, j))
                distances.append(b.sitofp(b.sub(j, position), F32))
                e.store(self.rows, "int64", b.add(at, I64(n)), b.mul(rows[-1], keys.v_row))
            starts = [b.mul(row, keys.k_row) for row in rows]
            distance = joined(b, distances)
            with e.loop(I64(0), parts) as part:
                offset = e.load(self.key_at, "int64", part)
                places = [e.at(keys.k, settings["k"], b.add(start, offset)) for start in starts]
                if settings["fetches"]:
                    self._fetch(part, at)
                for begin in range(0, self.together, AT_ONCE):
                    heads = [self._of(part, n) for n in range(begin, min(begin + AT_ONCE, self.together))]
                    for own, products in zip(heads, self._products(heads, places), strict=True):
                        score = keys.score(products, b.add(first, own), distance)
                        e.store(self.scores, "float32", b.add(b.mul(own, I64(KEYS)), at), score)
        with e.loop(count, I64(KEYS)) as at, e.loop(I64(0), b.mul(parts, I64(self.together))) as own:
            e.store(self.scores, "float32", b.add(b.mul(own, I64(KEYS)), at), real(LEAST))

    def _fetch(self, part: Value, at: Value) -> None:
        """Hints that the values of four keys of a tile are read soon."""
        e, b, dtype = self.e, self.b, self.settings["v"]
        offset = e.load(self.value_at, "int64", part)
        for n in range(FOUR):
            row = e.load(self.rows, "int64", b.add(at, I64(n)))
            place = e.at(self.keys.v, dtype, b.add(row, offset))
            for line in range(0, self.values * size_of(dtype), LINE):
                e.prefetch(place, line)

    def _products(self, heads: list[Value], places: list[Value]) -> list[Value]:
        """Of each head the products of its query with four keys."""
        e, b = self.e, self.b
        queries = [e.at(self.queries, "float32", b.mul(own, I64(self.channels))) for own in heads]
        sums: list[dict[int, list[Value]]] = [{} for _ in heads]  # of each head by lanes: of each key
        for start, lanes in parts_of(self.channels, e.machine.lanes):
            loaded = [e.load(place, self.settings["k"], I64(start), lanes) for place in places]
            for query, found in zip(queries, sums, strict=True):
                factor = e.load(query, "float32", I64(start), lanes)
                terms = found.get(lanes, [e.zero(lanes)] * FOUR)
                found[lanes] = [e.multiply_add(factor, key, term) for key, term in zip(loaded, terms, strict=True)]
        return [reduce(b.fadd, [four_sums(e, vectors) for vectors in found.values()]) for found in sums]

    def _add_values(self, part: Value, count: Value) -> None:
        """Makes shares of a part's scores, and adds values by them: as many channels as registers hold at a time."""
        e, b, keys = self.e, self.b, self.keys
        heads = [self._of(part, n) for n in range(self.together)]
        rows = [e.at(self.scores, "float32", b.mul(own, I64(KEYS))) for own in heads]
        factors = [self._share(own, row) for own, row in zip(heads, rows, strict=True)]
        places = [e.at(self.sums, "float32", b.mul(own, I64(self.values))) for own in heads]
        offset = e.load(self.value_at, "int64", part)
        listed = parts_of(self.values, e.machine.lanes)
        most_parts = max(1, (e.machine.registers - 1) // (self.together + 1))  # sums, values, and a share
        for begin in range(0, len(listed), most_parts):
            some = listed[begin : begin + most_parts]
            sums = [
                [
                    Cell(b, vector(lanes), b.fmul(e.load(place, "float32", I64(start), lanes), e.spread(factor, lanes)))
                    for start, lanes in some
                ]
                for place, factor in zip(places, factors, strict=True)
            ]
            with e.loop(I64(0), count) as at:
                value = e.at(keys.v, self.settings["v"], b.add(e.load(self.rows, "int64", at), offset))
                loaded = [e.load(value, self.settings["v"], I64(start), lanes) for start, lanes in some]
                for row, cells in zip(rows, sums, strict=True):
                    share = e.load(row, "float32", at)
                    for cell, other, (_, lanes) in zip(cells, loaded, some, strict=True):
                        cell.set(e.multiply_add(e.spread(share, lanes), other, cell.get()))
            for place, cells in zip(places, sums, strict=True):
                for cell, (start, _) in zip(cells, some, strict=True):
                    e.store(place, "float32", I64(start), cell.get())

    def _share(self, own: Value, row: Value) -> Value:
        """Writes the exponentials of a head's scores in their place: what its sums so far are multiplied by."""
        e, b, lanes = self.e, self.b, self.e.machine.lanes
        vectors = [e.load(row, "float32", I64(start), lanes) for start in range(0, KEYS, lanes)]
        largest = vectors[0]
        for value in vectors[1:]:
            largest = most(e, value, largest)
        largest = e.intrinsic(f"llvm.vector.reduce.fmax.{suffix(largest)}", F32, [largest])
        before = e.load(self.tops, "float32", own)
        top = most(e, largest, before)
        e.store(self.tops, "float32", own, top)
        total = e.zero(lanes)
        for number, value in enumerate(vectors):
            value = exp(e, b.fsub(value, e.spread(top, lanes)))
            e.store(row, "float32", I64(number * lanes), value)
            total = b.fadd(total, value)
        factor = exp(e, b.fsub(before, top))
        sum_before = b.fmul(e.load(self.totals, "float32", own), factor)
        e.store(self.totals, "float32", own, b.fadd(sum_before, e.total(total)))
        return factor

    def _finish(self, row: tuple[Value, Value], head: Value, part: Value) -> None:
        """Gives the shares of values; of a span its sums, its largest score and its sum of exponentials."""
        e, b, (sequence, span) = self.e, self.b, row
        spans, to, dtype, size = I64(1), self.keys.out, self.settings["q"], self.values
        if self.settings["spans"]:
            spans, to, dtype, size = e.slot(26, I64), e.slot(27, POINTER), "float32", self.values + SPAN
        place = b.mul(b.add(b.mul(b.add(b.mul(sequence, spans), span), self.keys.heads), head), I64(size))
        for n in range(self.together):
            own, begin = self._of(part, n), b.add(place, I64(n * size))
            total = e.load(self.totals, "float32", own)
            factor = inverse(e, total)
            for start, lanes in parts_of(self.values, e.machine.lanes):
                value = e.load(self.sums, "float32", b.add(b.mul(own, I64(self.values)), I64(start)), lanes)
                if not self.settings["spans"]:
                    value = b.fmul(value, e.spread(factor, lanes))
                e.store(to, dtype, b.add(begin, I64(start)), value)
            if self.settings["spans"]:
                e.store(to, dtype, b.add(begin, I64(self.values)), e.load(self.tops, "float32", own))
                e.store(to, dtype, b.add(begin, I64(self.values + 1)), total)

    def _of(self, part: Value, n: int) -> Value:
        """The number of a part's head among those of the tile."""
        return self.b.add(self.b.mul(part, I64(self.together)), I64(n))
