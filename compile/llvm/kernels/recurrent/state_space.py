# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""The state space of Mamba 2, token by token; see `bringup.graphs.ops.recurrent.state_space`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bringup.compile.llvm.ir.dtypes import I64
from bringup.compile.llvm.ir.emitter import Emitter
from bringup.compile.llvm.ir.functions import exp
from bringup.compile.llvm.kernels.recurrent.head_states import Columns, HeadStates, Rows, Update
from bringup.compile.llvm.kernels.recurrent.sequences import Sequence


def state_space(e: Emitter, settings: Mapping[str, Any]) -> None:
    """Slots and scratch memory: see `HeadStates`."""
    _StateSpace(e, settings).emit()


class _StateSpace(HeadStates):
    """One pass for each token: its update is its value, and its result the product of the new state and the query."""

    def process(self, tokens: Sequence, columns: Columns, before: Rows, after: Rows) -> None:
        e, b, query, key = self.e, self.e.b, self.vector(I64(0)), self.vector(I64(1))
        with e.loop(tokens.first, tokens.end) as token:
            self.copy_query_and_key(token, columns.head, query, key)
            is_first = b.icmp_signed("==", token, tokens.first)
            done = b.sub(token, tokens.first)
            is_stored, is_last = (b.icmp_signed("==", each, tokens.certain) for each in (done, b.add(done, I64(1))))
            source = self.selected(is_first, before, self.selected(is_stored, after, self.cached))
            to = self.selected(is_last, after, self.cached)
            decay = exp(e, self.load_gate("decay", token, columns.head))
            update = Update(decay, key, self.load_value(token, columns))
            (result,) = self.one_pass(source, to, columns, update, [query])
            self.store_result(token, columns, result)
