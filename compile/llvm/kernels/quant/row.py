# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""x · weightᵀ + bias of one row and a packed weight: each thread reads its rows of the weight once, in order.

An element is code · scale + term, with one scale and term per block. So the sum of a block is (sum of code · x) · scale
+ (sum of x) · term. Rows that share words are summed together, without shifting codes to the low bits: code · 16ⁿ is
exact in float32 too, and the sum of row n is divided once.

B blocks of one row of x, each with the matrix of an expert · N rows of a matrix · K channels
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import Any

from bringup.compile.llvm.ir.cell import Cell
from bringup.compile.llvm.ir.dtypes import I64
from bringup.compile.llvm.ir.emitter import Emitter, Value, real
from bringup.compile.llvm.ir.lanes import constant, vector
from bringup.compile.llvm.kernels.activations import given_rows
from bringup.compile.llvm.kernels.quant.rows import SLOTS, Blocks
from bringup.compile.llvm.kernels.quant.weight import Weight, from_zero
from bringup.compile.llvm.select.sizes import BLOCKS_AT_ONCE, converts
from bringup.compile.llvm.select.stored import WHOLE, Stored

TURNS = 4  # blocks of a row with independent accumulators
TOGETHER = 4  # rows whose accumulators of a block are in registers


def quant_row(e: Emitter, settings: Mapping[str, Any]) -> None:
    """Slots as those of `quant_rows`. An iteration adds `vectors` vectors of a block.

    Scratch memory: K elements of x if x is converted; the scales of some blocks of all rows that share a word; a vector
    for each of these rows; the sum of x in each block.
    """
    stored: Stored = settings["weight"]
    rows = stored.in_words
    b, blocks = e.b, Blocks(e, settings)
    is_signed = rows > 1 and stored.signed
    weight = Weight(e, from_zero(stored) if is_signed else stored, SLOTS)
    begin, end = e.share(b.udiv(blocks.columns, I64(rows)))

    def block(x: Value, bias: Value, out: Value, matrix: Value) -> None:
        own = weight.matrix(matrix)
        given, _ = given_rows(e, settings, x, I64(0), 1, blocks.channels, e.scratch)
        wide = blocks.channels if converts(settings) else I64(0)
        product = _Product(
            e, own, given, blocks.channels, e.at(e.scratch, "float32", wide), settings["vectors"], is_signed
        )
        with e.loop(begin, end) as group:
            first = b.mul(group, I64(rows))
            for row, value in enumerate(product.rows(first)):
                column = b.add(first, I64(row))
                if settings["bias"]:
                    value = b.fadd(value, e.load(bias, settings["bias"], column))
                e.store(out, settings["out"], column, value)

    blocks.each(block)
    e.finish()


class _Product:
    """Products of x with rows of a matrix."""

    def __init__(
        self, e: Emitter, weight: Weight, x: Value, channels: Value, scratch: Value, vectors: int, is_signed: bool
    ) -> None:
        self.e, self.b, self.weight, self.x = e, e.b, weight, x
        stored, lanes = weight.stored, e.machine.lanes
        self.stored, self.lanes, self.vectors, self.count = stored, lanes, vectors, stored.in_words
        self.is_signed = is_signed
        self.width = channels if stored.block[2] == WHOLE else I64(stored.block[2])
        self.blocks = e.b.udiv(channels, self.width)
        self.scales = scratch
        self.terms = e.at(scratch, "float32", I64(self.count * BLOCKS_AT_ONCE))
        self.sums = e.at(self.terms, "float32", I64(self.count * lanes))
        if stored.has_terms:
            self._sum_x()

    def rows(self, first: Value) -> list[Value]:
        """The dot products of the rows that share a word, from `first`."""
        e, b, lanes = self.e, self.b, self.lanes
        # For a single row, successive blocks use different accumulators, so that their additions are independent.
        turns = TURNS if self.count == 1 else 1
        sums = [[Cell(b, vector(lanes), e.zero(lanes)) for _ in range(self.count)] for _ in range(turns)]
        if self.stored.has_terms:
            for row in range(self.count):
                e.store(self.terms, "float32", I64(row * lanes), e.zero(lanes))
        with e.loop(I64(0), self.blocks, BLOCKS_AT_ONCE) as begin:
            end = e.minimum(b.add(begin, I64(BLOCKS_AT_ONCE)), self.blocks)
            with e.loop(I64(0), I64(self.count)) as row:
                self._read_blocks(b.add(first, row), row, begin, end)
            whole = b.sub(end, b.urem(b.sub(end, begin), I64(turns)))
            with e.loop(begin, whole, turns) as some:
                for turn, cells in enumerate(sums):
                    block = b.add(some, I64(turn))
                    self._add_block(first, block, b.sub(block, begin), cells)
            if turns > 1:
                with e.loop(whole, end) as block:
                    self._add_block(first, block, b.sub(block, begin), sums[0])
        found: list[Value] = []
        for row in range(self.count):
            value = reduce(b.fadd, [cells[row].get() for cells in sums])
            if self.count > 1:
                value = b.fmul(value, real(16.0 ** -self._shift(row), value))
            if self.stored.has_terms:
                value = b.fadd(value, e.load(self.terms, "float32", I64(row * lanes), lanes))
            found.append(e.total(value))
        return found

    def _sum_x(self) -> None:
        """The sum of x in each block."""
        e, b = self.e, self.b
        with e.loop(I64(0), self.blocks) as block:
            begin = b.mul(block, self.width)
            total = e.sum(begin, b.add(begin, self.width), lambda k, lanes: e.load(self.x, "float32", k, lanes))
            e.store(self.sums, "float32", block, total)

    def _read_blocks(self, row: Value, place: Value, begin: Value, end: Value) -> None:
        """Writes the scales of some blocks of a row, and adds term · (sum of x) for each."""
        e, b = self.e, self.b
        terms = e.at(self.terms, "float32", b.mul(place, I64(self.lanes)))

        def read(block: Value, lanes: int) -> None:
            scale, term = self.weight.of_block(row, b.mul(block, self.width), lanes)
            at = b.add(b.mul(place, I64(BLOCKS_AT_ONCE)), b.sub(block, begin))
            e.store(self.scales, "float32", at, scale)
            if term is not None:
                own = e.load(self.sums, "float32", block, lanes)
                total = e.multiply_add(term, own, e.load(terms, "float32", I64(0), lanes))
                e.store(terms, "float32", I64(0), total)

        e.each(begin, end, read)

    def _add_block(self, first: Value, block: Value, place: Value, sums: list[Cell]) -> None:
        """Adds the products of a block's codes, multiplied by its scale, to the sum of each row."""
        e, b, lanes = self.e, self.b, self.lanes
        begin = b.mul(block, self.width)
        for some in range(0, self.count, TOGETHER):
            numbers = range(some, min(some + TOGETHER, self.count))
            # A block of several iterations has one accumulator per vector of an iteration.
            chains = self.vectors if self.count == 1 and self.stored.block[2] != self.vectors * lanes else 1
            parts = {(n, c): Cell(b, vector(lanes), e.zero(lanes)) for n in numbers for c in range(chains)}
            with e.loop(I64(0), self.width, self.vectors * lanes) as within:
                for number in range(self.vectors):
                    k = b.add(b.add(begin, within), I64(number * lanes))
                    x = e.load(self.x, "float32", k, lanes)
                    for n, code in self._codes(first, k, numbers):
                        cell = parts[n, number % chains]
                        cell.set(e.multiply_add(code, x, cell.get()))
            for n in numbers:
                at = b.add(I64(n * BLOCKS_AT_ONCE), place)
                scale = e.spread(e.load(self.scales, "float32", at), lanes)
                value = parts[n, 0].get()
                for c in range(1, chains):
                    value = b.fadd(value, parts[n, c].get())
                sums[n].set(e.multiply_add(value, scale, sums[n].get()))

    def _codes(self, first: Value, k: Value, numbers: range) -> list[tuple[int, Value]]:
        """The codes of some rows in columns from k; those of row n are multiplied by 16 to the power of `_shift(n)`."""
        b, weight = self.b, self.weight
        if self.count == 1:
            return [(0, weight.codes(first, k, self.lanes))]
        words = weight.words(first, k, self.lanes)
        kind = words.type
        if self.is_signed:
            words = b.xor(words, constant(kind, 0x88888888))
        found: list[tuple[int, Value]] = []
        for n in numbers:
            if self._shift(n) == 0 and n:
                code = b.lshr(words, constant(kind, 4 * n))
            else:
                code = b.and_(words, constant(kind, 15 << 4 * n))
            found.append((n, weight.as_float(code)))
        return found

    def _shift(self, row: int) -> int:
        """The position of a row's codes in a word; 0 if they are shifted: for tables, and the last row (sign bit)."""
        return 0 if self.stored.has("table") or row == self.count - 1 else row
