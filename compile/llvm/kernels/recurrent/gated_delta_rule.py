# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""The gated delta rule, token by token; see `bringup.graphs.ops.recurrent.delta_rule`.

A column of a state depends on no other column, so a thread has some columns of a head, and they stay in its L1 cache
while it processes the tokens of a sequence.

N tokens of the step · B sequences · H value heads, R for each key head · K channels of a query and a key · V of a value
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from bringup.compile.llvm.ir.cell import Cell
from bringup.compile.llvm.ir.dtypes import F32, I64, POINTER
from bringup.compile.llvm.ir.emitter import Emitter, Value, real, vector
from bringup.compile.llvm.ir.functions import exp, rsqrt
from bringup.compile.llvm.ir.vectors import parts_of
from bringup.compile.llvm.kernels.recurrent.sequences import Sequence, padding, sequences
from bringup.compile.llvm.select.sizes import DELTA_COLUMNS
from bringup.graphs.ops.recurrent.delta_rule import EPS


def gated_delta_rule(e: Emitter, settings: Mapping[str, Any]) -> None:
    """Slots: q, its strides of tokens and heads; k, its strides; v, its strides of tokens, key heads and value heads;
    decay, its stride of tokens; beta, its stride of tokens; state, dense; starts; rows; lengths; out, dense; N; B.

    Scratch memory: the columns of a state, [K, `DELTA_COLUMNS`], then a query and the keys of two tokens.
    """
    b, rule = e.b, _Rule(e, settings)
    last = settings["values"] % DELTA_COLUMNS
    tiles = -(-settings["values"] // DELTA_COLUMNS)
    begin, end = e.share(I64(settings["heads"] * tiles))
    with e.loop(begin, end) as number:
        head, tile = b.udiv(number, I64(tiles)), b.urem(number, I64(tiles))
        if tiles > 1 and last:
            with b.if_else(b.icmp_signed("<", tile, I64(tiles - 1))) as (complete, rest):
                with complete:
                    rule.columns(head, b.mul(tile, I64(DELTA_COLUMNS)), DELTA_COLUMNS)
                with rest:
                    rule.columns(head, I64((tiles - 1) * DELTA_COLUMNS), last)
        else:
            rule.columns(head, b.mul(tile, I64(DELTA_COLUMNS)), last or DELTA_COLUMNS)
    e.finish()


class _Last(NamedTuple):
    """The update of the last token, which is not in the state yet: its decay, and what its key is multiplied by."""

    decay: Cell
    updates: list[Cell]


class _Rule:
    """The kernel's arguments, and the code for some columns of a head."""

    def __init__(self, e: Emitter, settings: Mapping[str, Any]) -> None:
        self.e, self.settings = e, settings
        self.keys, self.values = settings["keys"], settings["values"]
        self.heads, self.repeats = settings["heads"], settings["repeats"]
        places = {"q": 0, "k": 3, "v": 6, "decay": 10, "beta": 12, "state": 14, "starts": 15, "rows": 16}
        self.places = {name: e.slot(at, POINTER) for name, at in (places | {"lengths": 17, "out": 18}).items()}
        self.strides = {
            name: [e.slot(at, I64) for at in slots]
            for name, slots in {"q": (1, 2), "k": (4, 5), "v": (7, 8, 9), "decay": (11,), "beta": (13,)}.items()
        }
        self.tokens, self.count = e.slot(19, I64), e.slot(20, I64)
        self.tile = e.scratch
        self.query = e.at(e.scratch, "float32", I64(self.keys * DELTA_COLUMNS))
        self.keys_of_two = e.at(self.query, "float32", I64(self.keys))

    def columns(self, head: Value, column: Value, width: int) -> None:
        """Computes `width` columns of a head, from `column` on, of every sequence."""
        e, b, at = self.e, self.e.b, self.places
        parts = parts_of(width, e.machine.lanes)
        with sequences(e, at["starts"], at["rows"], at["lengths"], self.count) as sequence:
            row = b.add(b.mul(sequence.row, I64(self.heads)), head)
            state = e.at(at["state"], "float32", b.add(b.mul(row, I64(self.keys * self.values)), column))
            last = _Last(Cell(b, F32, F32(1.0)), [Cell(b, vector(lanes), e.zero(lanes)) for _, lanes in parts])
            self._load(state, sequence, parts)
            with e.loop(sequence.first, sequence.end) as token:
                self._token(token, head, column, parts, last)
            key = self._key(b.sub(sequence.end, I64(1)))
            with e.loop(I64(0), I64(self.keys)) as i:
                for (first, _), value in zip(parts, self._after(last, key, i, parts), strict=True):
                    e.store(state, "float32", b.add(b.mul(i, I64(self.values)), I64(first)), value)
        with padding(e, at["starts"], self.count, self.tokens) as token:
            for first, lanes in parts:
                e.store(self._out(token, head, column), self.settings["v"], I64(first), e.zero(lanes))

    def _load(self, state: Value, sequence: Sequence, parts: list[tuple[int, int]]) -> None:
        """Fills the scratch memory; the key of the token before the first is zeros, for an update that does nothing."""
        e, b = self.e, self.e.b
        with e.loop(I64(0), I64(self.keys)) as i:
            for first, lanes in parts:
                value = e.load(state, "float32", b.add(b.mul(i, I64(self.values)), I64(first)), lanes)
                value = b.select(sequence.is_new, e.zero(lanes), value)
                e.store(self.tile, "float32", self._of_tile(i, first), value)
        before = self._key(b.add(sequence.first, I64(1)))
        e.each(I64(0), I64(self.keys), lambda c, lanes: e.store(before, "float32", c, e.zero(lanes)))

    def _token(
        self, token: Value, head: Value, column: Value, parts: list[tuple[int, int]], last: _Last
    ) -> None:  # fmt: skip
        """Updates the state by the token before, in one pass with the products of this token's key and query.

        With the decayed state D, D + key ⊗ update has the product query · D + (query · key) · update. The key and the
        query are as they are stored, and the results are divided by their lengths.
        """
        e, b = self.e, self.e.b
        group = b.udiv(head, I64(self.repeats))
        before, key = self._key(b.add(token, I64(1))), self._key(token)
        query_length, key_length, together = self._factors(token, group, key)
        of_key, of_query = ([Cell(b, vector(lanes), e.zero(lanes)) for _, lanes in parts] for _ in range(2))
        with e.loop(I64(0), I64(self.keys)) as i:
            factors = [e.load(each, "float32", i) for each in (key, self.query)]
            after = self._after(last, before, i, parts)
            for (first, lanes), value, *cells in zip(parts, after, of_key, of_query, strict=True):
                e.store(self.tile, "float32", self._of_tile(i, first), value)
                for cell, factor in zip(cells, factors, strict=True):
                    cell.set(e.multiply_add(e.spread(factor, lanes), value, cell.get()))
        decay = exp(e, e.load(self._of_token("decay", token), self.settings["decay"], head))
        beta = e.load(self._of_token("beta", token), self.settings["beta"], head)
        token_stride, group_stride, head_stride = self.strides["v"]
        place = b.add(b.mul(token, token_stride), b.mul(group, group_stride))
        place = b.add(b.add(place, b.mul(b.urem(head, I64(self.repeats)), head_stride)), column)
        values, out = e.at(self.places["v"], self.settings["v"], place), self._out(token, head, column)
        by_key, by_query = b.fmul(decay, key_length), b.fmul(decay, query_length)
        together = b.fmul(together, b.fmul(query_length, key_length))
        last.decay.set(decay)
        for (first, lanes), one, other, cell in zip(parts, of_key, of_query, last.updates, strict=True):
            value = e.load(values, self.settings["v"], I64(first), lanes)
            missing = b.fsub(value, b.fmul(e.spread(by_key, lanes), one.get()))
            update = b.fmul(e.spread(beta, lanes), missing)
            result = b.fmul(e.spread(by_query, lanes), other.get())
            result = e.multiply_add(e.spread(together, lanes), update, result)
            e.store(out, self.settings["v"], I64(first), result)
            cell.set(b.fmul(e.spread(key_length, lanes), update))

    def _after(self, last: _Last, key: Value, i: Value, parts: list[tuple[int, int]]) -> list[Value]:
        """Row i of the state after an update."""
        e, b, found = self.e, self.e.b, []
        decay, factor = last.decay.get(), e.load(key, "float32", i)
        for (first, lanes), update in zip(parts, last.updates, strict=True):
            value = e.load(self.tile, "float32", self._of_tile(i, first), lanes)
            decayed = b.fmul(e.spread(decay, lanes), value)
            found.append(e.multiply_add(e.spread(factor, lanes), update.get(), decayed))
        return found

    def _factors(self, token: Value, group: Value, key: Value) -> tuple[Value, Value, Value]:
        """Copies a query and a key to scratch memory: factors that make them as long as they should be, and the product
        of the two vectors without those."""
        e, b, wide = self.e, self.e.b, self.e.machine.lanes
        sums = {lanes: [Cell(b, vector(lanes), e.zero(lanes)) for _ in range(3)] for lanes in (wide, 1)}
        sources = [(name, self._of_head(name, token, group)) for name in ("q", "k")]

        def add(c: Value, lanes: int) -> None:
            one, other = (e.load(source, self.settings[name], c, lanes) for name, source in sources)
            e.store(self.query, "float32", c, one)
            e.store(key, "float32", c, other)
            for cell, factors in zip(sums[lanes], ((one, one), (other, other), (one, other)), strict=True):
                cell.set(e.multiply_add(*factors, cell.get()))

        e.each(I64(0), I64(self.keys), add)
        of_query, of_key, together = (
            b.fadd(e.total(many.get()), one.get()) for many, one in zip(sums[wide], sums[1], strict=True)
        )
        of_query, of_key = (rsqrt(e, b.fadd(each, real(EPS))) for each in (of_query, of_key))
        return b.fmul(of_query, F32(self.keys**-0.5)), of_key, together

    def _key(self, token: Value) -> Value:
        """The place of a token's key: tokens take turns at two."""
        which = self.e.b.and_(token, I64(1))
        return self.e.at(self.keys_of_two, "float32", self.e.b.mul(which, I64(self.keys)))

    def _of_tile(self, i: Value, first: int) -> Value:
        return self.e.b.add(self.e.b.mul(i, I64(DELTA_COLUMNS)), I64(first))

    def _of_token(self, name: str, token: Value) -> Value:
        return self.e.at(self.places[name], self.settings[name], self.e.b.mul(token, self.strides[name][0]))

    def _of_head(self, name: str, token: Value, head: Value) -> Value:
        b, (token_stride, head_stride) = self.e.b, self.strides[name]
        place = b.add(b.mul(token, token_stride), b.mul(head, head_stride))
        return self.e.at(self.places[name], self.settings[name], place)

    def _out(self, token: Value, head: Value, column: Value) -> Value:
        b = self.e.b
        row = b.mul(b.add(b.mul(token, I64(self.heads)), head), I64(self.values))
        return self.e.at(self.places["out"], self.settings["v"], b.add(row, column))
