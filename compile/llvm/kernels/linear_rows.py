# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""x · weightᵀ + bias of few rows: each thread reads its rows of the weight once, in order.

bfloat16 elements are multiplied in pairs if the processor has the instruction. Otherwise the weight is loaded as even
and odd channels, and the rows of x are copied in that order: in blocks of two vectors, first the even channels.

M rows of x · N rows of the weight · K channels
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from bringup.compile.llvm.ir.cell import Cell
from bringup.compile.llvm.ir.dtypes import I32, I64, POINTER, size_of
from bringup.compile.llvm.ir.emitter import Emitter, Value
from bringup.compile.llvm.ir.lanes import vector
from bringup.compile.llvm.ir.pairs import add_pairs, adds_pairs, pairs_at
from bringup.compile.llvm.ir.vectors import FOUR, four_sums

CHAINS = 4  # independent accumulators of one row
PAIRED_ROWS = 4  # maximum rows of x with two accumulators each in registers
LINE = 64  # bytes of a cache line
# Prefetch distance in bytes of a 16-bit weight: its elements need more instructions, so fewer loads are outstanding.
# For float32, prefetching is slower at any distance (benchmarks/results/2026-11-23-llvm.md).
AHEAD = 16 * LINE
# If vectors have the size of a cache line, prefetching is slower for one row of x, and this distance is faster for
# more.
AHEAD_OF_ROWS = 8 * LINE

Read = Callable[[Value, Value], list[Value]]  # (address, channel) -> the elements of a block, as vectors


@dataclass(frozen=True, slots=True)
class _Block:
    """How `size` channels of the weight and of x are loaded and multiplied, into `vectors` accumulators."""

    size: int
    vectors: int
    weight: Read
    x: Read
    add: Callable[[Value, Value, Value], Value]


def linear_rows(e: Emitter, settings: Mapping[str, Any]) -> None:
    """Slots: x, its stride; weight, its stride; bias; out, dense; N; K. All strides count elements.

    `together` rows of the weight share the elements of x in registers.
    """
    b = e.b
    x, bias, out = (e.slot(at, POINTER) for at in (0, 4, 5))
    x_stride, columns, channels = (e.slot(at, I64) for at in (1, 6, 7))
    block, x_dtype = _block_of(e, settings), settings["x"]
    if not adds_pairs(e.machine, settings):
        order = b.sub(channels, b.srem(channels, I64(block.size))) if block.vectors > 1 else I64(0)
        x, x_stride = as_float32(e, x_dtype, x, x_stride, settings["rows"], channels, e.scratch, order)
        x_dtype = "float32"
    product = _Product(e, settings, block, (x, x_dtype, x_stride), channels)
    together = settings["together"]
    begin, end = e.share(columns, together)
    middle = b.sub(end, b.srem(b.sub(end, begin), I64(together)))
    for start, stop, count in ((begin, middle, together), (middle, end, 1))[: 2 if together > 1 else 1]:
        with e.loop(start, stop, count) as first:
            for (row, n), value in product.sums(first, count).items():
                column = b.add(first, I64(n))
                if settings["bias"]:
                    value = b.fadd(value, e.load(bias, settings["bias"], column))
                e.store(out, settings["out"], b.add(b.mul(I64(row), columns), column), value)
    e.finish()


def _block_of(e: Emitter, settings: Mapping[str, Any]) -> _Block:
    b, lanes, dtype = e.b, e.machine.lanes, settings["weight"]

    def two(place: Value, k: Value) -> list[Value]:
        return [e.load(place, "float32", b.add(k, I64(n * lanes)), lanes) for n in (0, 1)]

    if adds_pairs(e.machine, settings):
        return _Block(2 * lanes, 1, lambda p, k: [pairs_at(e, p, k)], lambda p, k: [pairs_at(e, p, k)],
                      lambda total, one, other: add_pairs(e, total, one, other))  # fmt: skip

    def add(total: Value, one: Value, other: Value) -> Value:
        return e.multiply_add(one, other, total)

    if settings["x"] == dtype == "bfloat16" and settings["rows"] <= PAIRED_ROWS:
        return _Block(2 * lanes, 2, lambda p, k: list(e.load_pairs(p, k, lanes)), two, add)
    return _Block(
        lanes, 1, lambda p, k: [e.load(p, dtype, k, lanes)], lambda p, k: [e.load(p, "float32", k, lanes)], add
    )


class _Product:
    """Products of all rows of x with rows of the weight."""

    def __init__(
        self, e: Emitter, settings: Mapping[str, Any], block: _Block, x: tuple[Value, str, Value], channels: Value
    ) -> None:
        self.e, self.b, self.block, self.channels = e, e.b, block, channels
        self.rows, self.dtype = settings["rows"], settings["weight"]
        place, self.x_dtype, stride = x
        self.x = [e.at(place, self.x_dtype, self.b.mul(I64(row), stride)) for row in range(self.rows)]
        self.weight, self.stride = e.slot(2, POINTER), e.slot(3, I64)
        if 4 * e.machine.lanes == LINE:
            self.ahead = AHEAD_OF_ROWS if self.rows > 1 else 0
        else:
            self.ahead = AHEAD if size_of(self.dtype) == 2 else 0

    def sums(self, first: Value, count: int) -> Mapping[tuple[int, int], Value]:
        """The products with `count` rows of the weight, by (row of x, row of the weight)."""
        e, b, block, lanes = self.e, self.b, self.block, self.e.machine.lanes
        weights = [e.at(self.weight, self.dtype, b.mul(b.add(first, I64(n)), self.stride)) for n in range(count)]
        places = [(row, n) for row in range(self.rows) for n in range(count)]
        chains = max(1, CHAINS // (len(places) * block.vectors))
        cells = {at: [Cell(b, vector(lanes), e.zero(lanes)) for _ in range(chains * block.vectors)] for at in places}
        rest = {at: Cell(b, vector(1), e.zero()) for at in places}
        step = chains * block.size
        whole, blocks = (b.sub(self.channels, b.srem(self.channels, I64(size))) for size in (step, block.size))
        with e.loop(I64(0), whole, step) as k:
            for chain in range(chains):
                self._add_block(weights, b.add(k, I64(chain * block.size)), cells, chain * block.vectors)
        if chains > 1:
            with e.loop(whole, blocks, block.size) as k:
                self._add_block(weights, k, cells, 0)

        def add(k: Value, width: int) -> None:
            factors = [e.load(place, self.dtype, k, width) for place in weights]
            for row, place in enumerate(self.x):
                other = e.load(place, self.x_dtype, k, width)
                for n, factor in enumerate(factors):
                    cell = cells[row, n][0] if width > 1 else rest[row, n]
                    cell.set(e.multiply_add(factor, other, cell.get()))

        e.each(blocks, self.channels, add)
        return self._totals(places, cells, rest)

    def _add_block(
        self, weights: list[Value], k: Value, cells: Mapping[tuple[int, int], list[Cell]], first: int
    ) -> None:
        e, block = self.e, self.block
        if self.ahead and block.size * size_of(self.dtype) % LINE == 0:
            for place in weights:
                e.prefetch(e.at(place, self.dtype, k), self.ahead)
        factors = [block.weight(place, k) for place in weights]
        for row, place in enumerate(self.x):
            for v, other in enumerate(block.x(place, k)):
                for n, factor in enumerate(factors):
                    cell = cells[row, n][first + v]
                    cell.set(block.add(cell.get(), factor[v], other))

    def _totals(
        self, places: list[tuple[int, int]], cells: Mapping[tuple[int, int], list[Cell]],
        rest: Mapping[tuple[int, int], Cell],
    ) -> Mapping[tuple[int, int], Value]:  # fmt: skip
        """Sums over lanes, four vectors at a time."""
        e, b = self.e, self.b
        vectors: list[Value] = []
        for at in places:
            value = cells[at][0].get()
            for cell in cells[at][1:]:
                value = b.fadd(value, cell.get())
            vectors.append(value)
        found: list[Value] = []
        for begin in range(0, len(vectors), FOUR):
            some = vectors[begin : begin + FOUR]
            if len(some) < FOUR:
                found += [e.total(value) for value in some]
                continue
            four = four_sums(e, some)
            found += [b.extract_element(four, I32(n)) for n in range(FOUR)]
        return {at: b.fadd(value, rest[at].get()) for at, value in zip(places, found, strict=True)}


def as_float32(
    e: Emitter, dtype: str, x: Value, stride: Value, rows: int, channels: Value, memory: Value, paired: Value
) -> tuple[Value, Value]:
    """Rows of x as float32, and their stride. 16-bit rows are copied to `memory`, `paired` channels in pairs."""
    if dtype == "float32":
        return x, stride
    b = e.b
    for row in range(rows):
        source, place = b.mul(I64(row), stride), b.mul(I64(row), channels)

        def copy(k: Value, lanes: int, source: Value = source, place: Value = place) -> None:
            e.store(memory, "float32", b.add(place, k), e.load(x, dtype, b.add(source, k), lanes))

        with e.loop(I64(0), paired, 2 * e.machine.lanes) as k:
            for n, value in enumerate(e.load_pairs(x, b.add(source, k), e.machine.lanes)):
                e.store(memory, "float32", b.add(b.add(place, k), I64(n * e.machine.lanes)), value)
        e.each(paired, channels, copy)
    return memory, channels
