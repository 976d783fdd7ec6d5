# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""The rows of a cache that a query attends to, and the computation of scores; both attention kernels use it.

A query at position p attends to the keys at positions j with first(p) <= j <= p; with a ring, to those in it. With
chunks, first(p) is the start of the query's chunk (`graphs.ops.attention.first_key`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bringup.compile.llvm.ir.dtypes import F32, F64, I64, POINTER
from bringup.compile.llvm.ir.emitter import Emitter, Value
from bringup.compile.llvm.ir.functions import tanh
from bringup.graphs.core.step import BLOCK

LEAST = -3.4e38  # the score of a masked key


def earlier_keys(e: Emitter, position: Value, window: Value, *, is_chunk: bool) -> Value:
    """The number of keys before its own in the window of the query at a position, or in its chunk."""
    return e.b.urem(position, window) if is_chunk else e.b.sub(window, I64(1))


class Keys:
    """The arguments of attention that locate keys.

    Slots: q, its strides of tokens and heads; keys, their strides of rows and heads; values, their strides; out, dense;
    positions; starts; block table; rows; columns of the table; ring; window; scale; softcap; sinks; slopes; heads; key
    heads; sequences; selected keys, dense.
    """

    def __init__(self, e: Emitter, settings: Mapping[str, Any]) -> None:
        self.e, self.settings = e, settings
        self.q, self.k, self.v, self.out = (e.slot(at, POINTER) for at in (0, 3, 6, 9))
        self.q_row, self.q_head, self.k_row, self.k_head, self.v_row, self.v_head = (
            e.slot(at, I64) for at in (1, 2, 4, 5, 7, 8)
        )
        self.positions, self.starts, self.table, self.rows = (e.slot(at, POINTER) for at in (10, 11, 12, 13))
        self.columns, self.ring, self.window = (e.slot(at, I64) for at in (14, 15, 16))
        self.scale, self.softcap = (e.b.fptrunc(e.slot(at, F64), F32) for at in (17, 18))
        self.sinks, self.slopes = (e.slot(at, POINTER) for at in (19, 20))
        self.heads, self.groups, self.sequences = (e.slot(at, I64) for at in (21, 22, 23))
        self.chosen = e.slot(24, POINTER)

    def group(self, head: Value) -> Value:
        """The key head of a query head."""
        return self.e.b.udiv(head, self.e.b.udiv(self.heads, self.groups))

    def position(self, token: Value) -> Value:
        """The position of a token in its sequence."""
        return self.e.load(self.positions, "int64", token)

    def first(self, position: Value) -> Value:
        """The first key that the query at a position attends to."""
        return self.e.maximum(I64(0), self.e.b.sub(position, self.earlier(position)))

    def earlier(self, position: Value) -> Value:
        """The number of keys before its own that the query at a position attends to, if there are as many."""
        return earlier_keys(self.e, position, self.window, is_chunk=self.settings["chunked"])

    def is_chosen(self, token: Value, at: Value) -> Value:
        """Whether a token's query may attend to the key at a position."""
        b = self.e.b
        return self.e.load(self.chosen, "bool", b.add(b.mul(token, b.mul(self.columns, I64(BLOCK))), at))

    def row(self, sequence: Value, at: Value) -> Value:
        """The row of a sequence's key at a position."""
        b = self.e.b
        match self.settings["rows"]:
            case "ring":
                begin = b.mul(self.e.load(self.rows, "int64", sequence), self.ring)
                return b.add(begin, b.urem(at, self.ring))
            case "first ring":
                return b.urem(at, self.ring)
            case "table":
                entry = b.add(b.mul(sequence, self.columns), b.udiv(at, I64(BLOCK)))
                return b.add(b.mul(self.e.load(self.table, "int64", entry), I64(BLOCK)), b.urem(at, I64(BLOCK)))
            case _:
                return at

    def key(self, row: Value, group: Value) -> Value:
        """The address of a key head in a row."""
        b = self.e.b
        return self.e.at(self.k, self.settings["k"], b.add(b.mul(row, self.k_row), b.mul(group, self.k_head)))

    def value(self, row: Value, group: Value) -> Value:
        """The address of a value head in a row."""
        b = self.e.b
        return self.e.at(self.v, self.settings["v"], b.add(b.mul(row, self.v_row), b.mul(group, self.v_head)))

    def query(self, token: Value, head: Value) -> Value:
        """The address of a query head of a token."""
        b = self.e.b
        return self.e.at(self.q, self.settings["q"], b.add(b.mul(token, self.q_row), b.mul(head, self.q_head)))

    def score(self, product: Value, head: Value, distance: Value) -> Value:
        """A score from the product of query and key; `distance`: the key's position minus the query's, as float32."""
        e, lanes = self.e, getattr(product.type, "count", 1)
        found = e.b.fmul(product, e.spread(self.scale, lanes))
        if self.settings["softcap"]:
            cap = e.spread(self.softcap, lanes)
            found = e.b.fmul(tanh(e, e.b.fdiv(found, cap)), cap)
        if self.settings["slopes"]:
            found = e.multiply_add(e.spread(e.load(self.slopes, self.settings["slopes"], head), lanes), distance, found)
        return found
