# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""The gated delta rule, token by token; see `bringup.graphs.ops.recurrent.delta_rule`.

A column of a state depends on no other column, so a thread has some columns of a head, and they stay in its L1 cache
while it processes the tokens of a sequence.

N tokens of the step · B sequences · H value heads, R for each key head · K channels of a query and a key · V of a value
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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

    Scratch memory: the columns of a state, [K, `DELTA_COLUMNS`], then a query and a key.
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
        self.key = e.at(self.query, "float32", I64(self.keys))

    def columns(self, head: Value, column: Value, width: int) -> None:
        """Computes `width` columns of a head, from `column` on, of every sequence."""
        e, b, at = self.e, self.e.b, self.places
        parts = parts_of(width, e.machine.lanes)
        with sequences(e, at["starts"], at["rows"], at["lengths"], self.count) as sequence:
            row = b.add(b.mul(sequence.row, I64(self.heads)), head)
            state = e.at(at["state"], "float32", b.add(b.mul(row, I64(self.keys * self.values)), column))
            self._load(state, sequence, parts)
            with e.loop(sequence.first, sequence.end) as token:
                self._token(token, head, column, parts)
            with e.loop(I64(0), I64(self.keys)) as i:
                for first, lanes in parts:
                    value = e.load(self.tile, "float32", self._of_tile(i, first), lanes)
                    e.store(state, "float32", b.add(b.mul(i, I64(self.values)), I64(first)), value)
        with padding(e, at["starts"], self.count, self.tokens) as token:
            for first, lanes in parts:
                e.store(self._out(token, head, column), self.settings["v"], I64(first), e.zero(lanes))

    def _load(self, state: Value, sequence: Sequence, parts: list[tuple[int, int]]) -> None:
        e, b = self.e, self.e.b
        with e.loop(I64(0), I64(self.keys)) as i:
            for first, lanes in parts:
                value = e.load(state, "float32", b.add(b.mul(i, I64(self.values)), I64(first)), lanes)
                value = b.select(sequence.is_new, e.zero(lanes), value)
                e.store(self.tile, "float32", self._of_tile(i, first), value)

    def _token(self, token: Value, head: Value, column: Value, parts: list[tuple[int, int]]) -> None:
        """With the decayed state D, D + key ⊗ update has the product query · D + (query · key) · update."""
        e, b = self.e, self.e.b
        group = b.udiv(head, I64(self.repeats))
        for name, place, scale in (("q", self.query, self.keys**-0.5), ("k", self.key, 1.0)):
            self._unit(self._of_head(name, token, group), self.settings[name], place, scale)
        decay = exp(e, e.load(self._of_token("decay", token), self.settings["decay"], head))
        beta = e.load(self._of_token("beta", token), self.settings["beta"], head)
        together = e.sum(I64(0), I64(self.keys), self._product)
        of_key, of_query = ([Cell(b, vector(lanes), e.zero(lanes)) for _, lanes in parts] for _ in range(2))
        with e.loop(I64(0), I64(self.keys)) as i:
            for (first, lanes), one, other in zip(parts, of_key, of_query, strict=True):
                value = e.load(self.tile, "float32", self._of_tile(i, first), lanes)
                for cell, factors in ((one, self.key), (other, self.query)):
                    factor = e.spread(e.load(factors, "float32", i), lanes)
                    cell.set(e.multiply_add(factor, value, cell.get()))
        token_stride, group_stride, head_stride = self.strides["v"]
        place = b.add(b.mul(token, token_stride), b.mul(group, group_stride))
        place = b.add(b.add(place, b.mul(b.urem(head, I64(self.repeats)), head_stride)), column)
        values, out, updates = e.at(self.places["v"], self.settings["v"], place), self._out(token, head, column), []
        for (first, lanes), one, other in zip(parts, of_key, of_query, strict=True):
            wide = {name: e.spread(each, lanes) for name, each in {"d": decay, "b": beta, "t": together}.items()}
            value = e.load(values, self.settings["v"], I64(first), lanes)
            update = b.fmul(wide["b"], b.fsub(value, b.fmul(wide["d"], one.get())))
            updates.append(update)
            result = e.multiply_add(wide["t"], update, b.fmul(wide["d"], other.get()))
            e.store(out, self.settings["v"], I64(first), result)
        with e.loop(I64(0), I64(self.keys)) as i:
            for (first, lanes), update in zip(parts, updates, strict=True):
                decayed = b.fmul(e.spread(decay, lanes), e.load(self.tile, "float32", self._of_tile(i, first), lanes))
                factor = e.spread(e.load(self.key, "float32", i), lanes)
                e.store(self.tile, "float32", self._of_tile(i, first), e.multiply_add(factor, update, decayed))

    def _unit(self, source: Value, dtype: str, place: Value, scale: float) -> None:
        """Stores `scale` times the unit vector of K channels."""
        e, b = self.e, self.e.b

        def square(c: Value, lanes: int) -> Value:
            value = e.load(source, dtype, c, lanes)
            return b.fmul(value, value)

        factor = b.fmul(rsqrt(e, b.fadd(e.sum(I64(0), I64(self.keys), square), real(EPS))), F32(scale))

        def write(c: Value, lanes: int) -> None:
            e.store(place, "float32", c, b.fmul(e.load(source, dtype, c, lanes), e.spread(factor, lanes)))

        e.each(I64(0), I64(self.keys), write)

    def _product(self, c: Value, lanes: int) -> Value:
        return self.e.b.fmul(*(self.e.load(each, "float32", c, lanes) for each in (self.query, self.key)))

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
