# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""The gated delta rule, token by token; see `bringup.graphs.ops.recurrent.delta_rule`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from bringup.compile.llvm.ir.cell import Cell
from bringup.compile.llvm.ir.dtypes import F32, I64, POINTER
from bringup.compile.llvm.ir.emitter import Emitter, Value, real
from bringup.compile.llvm.ir.functions import exp, rsqrt
from bringup.compile.llvm.ir.lanes import vector
from bringup.compile.llvm.kernels.recurrent.head_states import OWN_SLOTS, Columns, HeadStates, Rows, Update
from bringup.compile.llvm.kernels.recurrent.sequences import Sequence
from bringup.graphs.ops.recurrent.delta_rule import EPS


def gated_delta_rule(e: Emitter, settings: Mapping[str, Any]) -> None:
    """Slots and scratch memory: see `HeadStates`; then beta, its stride of tokens."""
    _DeltaRule(e, settings).emit()


class _Factors(NamedTuple):
    """Factors by which a query and a key get the lengths that they should have, and the product of both with these."""

    query: Value
    key: Value
    product: Value


class _DeltaRule(HeadStates):
    """One pass for each token, and one after the last unless that is a proposal.

    The update of a token needs the product of its key and the state, so the pass of the next token applies it. With the
    decayed state D, D + key ⊗ update has the product query · D + (query · key) · update. The key and the query are as
    they are stored, and the results are multiplied by factors of their lengths.
    """

    def __init__(self, e: Emitter, settings: Mapping[str, Any]) -> None:
        super().__init__(e, settings)
        self.places["beta"], self.strides["beta"] = e.slot(OWN_SLOTS, POINTER), [e.slot(OWN_SLOTS + 1, I64)]

    def process(self, tokens: Sequence, columns: Columns, before: Rows, after: Rows) -> None:
        e, b = self.e, self.e.b
        query, before_first = self.vector(I64(0)), self._key(b.add(tokens.first, I64(1)))
        e.each(I64(0), I64(self.keys), lambda c, lanes: e.store(before_first, "float32", c, e.zero(lanes)))
        decay, updates = Cell(b, F32, F32(1.0)), self.cells(columns)

        def before_token(token: Value) -> Update:
            return Update(decay.get(), self._key(b.add(token, I64(1))), [cell.get() for cell in updates])

        with e.loop(tokens.first, tokens.end) as token:
            key = self._key(token)
            factors = self._factors(token, columns.head, query, key)
            is_first, done = b.icmp_signed("==", token, tokens.first), b.sub(token, tokens.first)
            is_last, is_stored = (b.icmp_signed("==", each, tokens.certain) for each in (done, b.sub(done, I64(1))))
            source = self.selected(is_first, before, self.selected(is_stored, after, self.cached))
            to = self.selected(is_last, after, self.cached)
            products = self.one_pass(source, to, columns, before_token(token), [key, query])
            decay.set(exp(e, self.load_gate("decay", token, columns.head)))
            beta = self.load_gate("beta", token, columns.head)
            results = self._results(factors, decay.get(), beta, self.load_value(token, columns), products)
            self.store_result(token, columns, [result for result, _ in results])
            for cell, (_, update) in zip(updates, results, strict=True):
                cell.set(update)
        with b.if_then(b.icmp_signed("==", tokens.certain, tokens.count)):
            self.one_pass(self.cached, after, columns, before_token(tokens.end), [])

    def _results(
        self, factors: _Factors, decay: Value, beta: Value, value: list[Value], products: list[list[Value]]
    ) -> list[tuple[Value, Value]]:
        """Vectors of the result, and of the update of the key as stored; `products` are those of the state before."""
        e, b, found = self.e, self.e.b, []
        by_key, by_query = (b.fmul(decay, factor) for factor in (factors.key, factors.query))
        for each, of_key, of_query in zip(value, *products, strict=True):
            lanes = getattr(each.type, "count", 1)
            missing = b.fsub(each, b.fmul(e.spread(by_key, lanes), of_key))
            update = b.fmul(e.spread(beta, lanes), missing)
            result = b.fmul(e.spread(by_query, lanes), of_query)
            result = e.multiply_add(e.spread(factors.product, lanes), update, result)
            found.append((result, b.fmul(e.spread(factors.key, lanes), update)))
        return found

    def _factors(self, token: Value, head: Value, query: Value, key: Value) -> _Factors:
        """Copies a query and a key to scratch memory, and computes their factors."""
        e, b, wide = self.e, self.e.b, self.e.machine.lanes
        sums = {lanes: [Cell(b, vector(lanes), e.zero(lanes)) for _ in range(3)] for lanes in (wide, 1)}

        def add(lanes: int, one: Value, other: Value) -> None:
            for cell, factors in zip(sums[lanes], ((one, one), (other, other), (one, other)), strict=True):
                cell.set(e.multiply_add(*factors, cell.get()))

        self.copy_query_and_key(token, head, query, key, add)
        squares_of_query, squares_of_key, product = (
            b.fadd(e.total(many.get()), one.get()) for many, one in zip(sums[wide], sums[1], strict=True)
        )
        of_query, of_key = (rsqrt(e, b.fadd(each, real(EPS))) for each in (squares_of_query, squares_of_key))
        of_query = b.fmul(of_query, F32(self.keys**-0.5))
        return _Factors(of_query, of_key, b.fmul(product, b.fmul(of_query, of_key)))

    def _key(self, token: Value) -> Value:
        """The place of a token's key: tokens take turns at two."""
        return self.vector(self.e.b.add(self.e.b.and_(token, I64(1)), I64(1)))
