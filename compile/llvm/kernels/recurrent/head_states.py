# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""Kernels whose state, a matrix for each head of a sequence, changes with each token to decay · state + key ⊗ update.

A column of a state depends on no other column, so a thread has some columns of a head. They stay in its cache while it
processes the tokens of a sequence: the first pass over them reads the state, and the last one writes it.

N tokens of the step · B sequences · H value heads, R for each key head · K channels of a query and a key · V of a value
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from bringup.compile.llvm.ir.cell import Cell
from bringup.compile.llvm.ir.dtypes import I64, POINTER
from bringup.compile.llvm.ir.emitter import Emitter, Value
from bringup.compile.llvm.ir.lanes import vector
from bringup.compile.llvm.ir.vectors import parts_of
from bringup.compile.llvm.kernels.recurrent.sequences import Sequence, one_sequence, padding
from bringup.compile.llvm.select.sizes import STATE_COLUMNS

OWN_SLOTS = 20  # the first slot of a rule


class Columns(NamedTuple):
    """Columns of a head, from `first` on, in vectors: the column of each after `first`, and its lanes."""

    head: Value
    first: Value
    parts: list[tuple[int, int]]


class Rows(NamedTuple):
    """The place of these columns in a float32 matrix of K rows: that of the first row, and elements between rows."""

    place: Value
    stride: Value


class Update(NamedTuple):
    """What a token does to a state: its decay, the address of its key as float32, and the vectors of the update."""

    decay: Value
    key: Value
    values: list[Value]


class HeadStates(ABC):
    """The arguments of such a kernel, and all code but the rule by which a token updates a state.

    Slots: q, its strides of tokens and heads; k, its strides; v, its strides of tokens, key heads and value heads;
    decay, its stride of tokens; state, dense; starts; rows; lengths; out, dense; N; B; certain; those of the
    rule.

    Scratch memory: the columns of a state, [K, `STATE_COLUMNS`], then three vectors of K elements.
    """

    def __init__(self, e: Emitter, settings: Mapping[str, Any]) -> None:
        self.e, self.settings = e, settings
        self.keys, self.values = settings["keys"], settings["values"]
        self._heads, self._repeats = settings["heads"], settings["repeats"]
        places = {"q": 0, "k": 3, "v": 6, "decay": 10, "state": 12, "starts": 13, "rows": 14, "lengths": 15, "out": 16}
        strides = {"q": (1, 2), "k": (4, 5), "v": (7, 8, 9), "decay": (11,)}
        self.places = {name: e.slot(at, POINTER) for name, at in places.items()}
        self.strides = {name: [e.slot(at, I64) for at in slots] for name, slots in strides.items()}
        self._tokens, self._count = e.slot(17, I64), e.slot(18, I64)
        self._certain = e.slot(19, POINTER) if settings["proposals"] else None
        self.cached = Rows(e.scratch, I64(STATE_COLUMNS))
        self._vectors = e.at(e.scratch, "float32", I64(self.keys * STATE_COLUMNS))

    @abstractmethod
    def process(self, tokens: Sequence, columns: Columns, before: Rows, after: Rows) -> None:
        """Emits the tokens of a sequence. The first pass over the state reads `before`. The state after the certain
        tokens is written to `after`, which the next pass reads."""

    def emit(self) -> None:
        """Emits the kernel. An item of the work is some columns of a head of a sequence.

        Items are ordered by head, so that parts have equal work if sequences have different lengths. Several threads
        may write the row for padding, which no program reads.
        """
        e, b = self.e, self.e.b
        last, tiles = self.values % STATE_COLUMNS, -(-self.values // STATE_COLUMNS)
        begin, end = e.share(b.mul(I64(self._heads * tiles), self._count))
        with e.loop(begin, end) as number:
            which, sequence = b.udiv(number, self._count), b.urem(number, self._count)
            head, tile = b.udiv(which, I64(tiles)), b.urem(which, I64(tiles))
            if tiles > 1 and last:
                with b.if_else(b.icmp_signed("<", tile, I64(tiles - 1))) as (complete, rest):
                    with complete:
                        self._columns(sequence, head, b.mul(tile, I64(STATE_COLUMNS)), STATE_COLUMNS)
                    with rest:
                        self._columns(sequence, head, I64((tiles - 1) * STATE_COLUMNS), last)
            else:
                self._columns(sequence, head, b.mul(tile, I64(STATE_COLUMNS)), last or STATE_COLUMNS)
        e.finish()

    def _columns(self, sequence: Value, head: Value, first: Value, width: int) -> None:
        e, b, at = self.e, self.e.b, self.places
        columns = Columns(head, first, parts_of(width, e.machine.lanes))
        fields = (at["starts"], at["rows"], at["lengths"], self._certain)
        with one_sequence(e, *fields, sequence) as tokens:
            row = b.add(b.mul(tokens.row, I64(self._heads)), head)
            index = b.add(b.mul(row, I64(self.keys * self.values)), first)
            state = Rows(e.at(at["state"], "float32", index), I64(self.values))
            with b.if_then(tokens.is_new), e.loop(I64(0), I64(self.keys)) as i:
                for part, lanes in columns.parts:
                    e.store(self.cached.place, "float32", self._of_row(self.cached, i, part), e.zero(lanes))
            self.process(tokens, columns, self.selected(tokens.is_new, self.cached, state), state)
        is_first = b.icmp_signed("==", sequence, I64(0))
        with b.if_then(is_first), padding(e, at["starts"], self._count, self._tokens) as token:
            self.store_result(token, columns, [e.zero(lanes) for _, lanes in columns.parts])

    # --- for rules

    def one_pass(
        self, source: Rows, to: Rows, columns: Columns, update: Update, vectors: list[Value]
    ) -> list[list[Value]]:
        """Applies an update to a state, and returns the products of the new state with each of some float32 vectors."""
        e, b = self.e, self.e.b
        sums = [self.cells(columns) for _ in vectors]
        with e.loop(I64(0), I64(self.keys)) as i:
            key, *factors = (e.load(each, "float32", i) for each in (update.key, *vectors))
            for (part, lanes), of_update, *cells in zip(columns.parts, update.values, *sums, strict=True):
                value = e.load(source.place, "float32", self._of_row(source, i, part), lanes)
                decayed = b.fmul(e.spread(update.decay, lanes), value)
                value = e.multiply_add(e.spread(key, lanes), of_update, decayed)
                e.store(to.place, "float32", self._of_row(to, i, part), value)
                for cell, factor in zip(cells, factors, strict=True):
                    cell.set(e.multiply_add(e.spread(factor, lanes), value, cell.get()))
        return [[cell.get() for cell in cells] for cells in sums]

    def vector(self, number: Value) -> Value:
        """The address of one of three float32 vectors of K elements, in scratch memory."""
        return self.e.at(self._vectors, "float32", self.e.b.mul(number, I64(self.keys)))

    def copy_query_and_key(
        self,
        token: Value,
        head: Value,
        query: Value,
        key: Value,
        use: Callable[[int, Value, Value], None] | None = None,
    ) -> None:
        """Copies those of a token to float32 vectors; `use` emits code for `lanes` elements of both."""
        e, b, group = self.e, self.e.b, self.e.b.udiv(head, I64(self._repeats))
        sources: list[tuple[str, Value]] = []
        for name in ("q", "k"):
            token_stride, head_stride = self.strides[name]
            place = b.add(b.mul(token, token_stride), b.mul(group, head_stride))
            sources.append((self.settings[name], e.at(self.places[name], self.settings[name], place)))

        def copy(c: Value, lanes: int) -> None:
            values = [e.load(source, dtype, c, lanes) for dtype, source in sources]
            for to, value in zip((query, key), values, strict=True):
                e.store(to, "float32", c, value)
            if use:
                use(lanes, *values)

        e.each(I64(0), I64(self.keys), copy)

    def load_value(self, token: Value, columns: Columns) -> list[Value]:
        """The columns of a token's value."""
        e, b, dtype = self.e, self.e.b, self.settings["v"]
        group, repeat = b.udiv(columns.head, I64(self._repeats)), b.urem(columns.head, I64(self._repeats))
        terms = [b.mul(each, stride) for each, stride in zip((token, group, repeat), self.strides["v"], strict=True)]
        place = e.at(self.places["v"], dtype, b.add(b.add(terms[0], terms[1]), b.add(terms[2], columns.first)))
        return [e.load(place, dtype, I64(part), lanes) for part, lanes in columns.parts]

    def load_gate(self, name: str, token: Value, head: Value) -> Value:
        """The element of a token and a head in a tensor [N, H]."""
        dtype = self.settings[name]
        row = self.e.at(self.places[name], dtype, self.e.b.mul(token, self.strides[name][0]))
        return self.e.load(row, dtype, head)

    def store_result(self, token: Value, columns: Columns, values: list[Value]) -> None:
        """Stores the columns of a token's result."""
        e, b, dtype = self.e, self.e.b, self.settings["v"]
        row = b.mul(b.add(b.mul(token, I64(self._heads)), columns.head), I64(self.values))
        place = e.at(self.places["out"], dtype, b.add(row, columns.first))
        for (part, _), value in zip(columns.parts, values, strict=True):
            e.store(place, dtype, I64(part), value)

    def cells(self, columns: Columns) -> list[Cell]:
        """A variable for each vector of some columns, zeros."""
        return [Cell(self.e.b, vector(lanes), self.e.zero(lanes)) for _, lanes in columns.parts]

    def selected(self, condition: Value, one: Rows, other: Rows) -> Rows:
        """`one` if the condition holds, otherwise `other`."""
        return Rows(*(self.e.b.select(condition, *both) for both in zip(one, other, strict=True)))

    def _of_row(self, rows: Rows, i: Value, part: int) -> Value:
        return self.e.b.add(self.e.b.mul(i, rows.stride), I64(part))
