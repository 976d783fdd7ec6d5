# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false
"""x · weightᵀ + bias of few rows with 4-bit codes in words, computed in integers, for processors with AVX2.

Within a group of columns, x is a signed 24-bit integer, the precision of a float32, times a power of two. The integer
is split into 8-bit digits. One instruction multiplies 32 codes with a digit each, and the sums are exact. If x is
rounded to int8, it has one digit. Codes of float4 are converted to integers first.

B blocks of M rows of x, each with the matrix of an expert · N rows of a matrix · K channels
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from typing import Any

from bringup.compile.llvm.ir.cell import Cell
from bringup.compile.llvm.ir.dtypes import I64
from bringup.compile.llvm.ir.emitter import Emitter, Value, real
from bringup.compile.llvm.ir.lanes import vector
from bringup.compile.llvm.ir.vectors import joined, shuffled
from bringup.compile.llvm.kernels.linear_tiles import transposed
from bringup.compile.llvm.kernels.quant.dots import Dots
from bringup.compile.llvm.kernels.quant.rows import SLOTS, Blocks
from bringup.compile.llvm.kernels.quant.weight import Weight
from bringup.compile.llvm.kernels.quant.whole import digits_of, in_integers, sum_of, whole_numbers
from bringup.compile.llvm.select.stored import WHOLE, Stored

ROWS = 8  # in a word
ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # row of each lane: first the low halves of a word's bytes, then the high halves


def quant_digits(e: Emitter, settings: Mapping[str, Any]) -> None:
    """Slots as those of `quant_rows`. `vectors` vectors of 8 columns have one factor, an element of x `digits` digits.

    A vector holds the words of `at_once` columns, 8 or 16. Scratch memory: 8 by 8 scales; for each row of x the factors
    of groups, the sums of groups, and the digits, 4 bytes per column and digit.
    """
    b, blocks = e.b, Blocks(e, settings)
    stored: Stored = settings["weight"]
    weight = Weight(e, in_integers(stored), SLOTS)
    begin, end = e.share(b.udiv(blocks.columns, I64(ROWS)))

    def block(x: Value, bias: Value, out: Value, matrix: Value) -> None:
        product = _Product(e, settings, weight.matrix(matrix), blocks.channels)
        with e.loop(I64(0), blocks.rows) as row:
            product.of_row(row).read(e.at(x, settings["x"], b.mul(row, blocks.x_stride)), settings["x"])
        with e.loop(begin, end) as group, e.loop(I64(0), blocks.rows) as row:
            column = b.mul(group, I64(ROWS))
            value = product.of_row(row).sums_of(column)
            if settings["bias"]:
                value = b.fadd(value, e.load(bias, settings["bias"], column, ROWS))
            e.store(out, settings["out"], b.add(b.mul(row, blocks.columns), column), value)

    blocks.each(block)
    e.finish()


class _Product:
    """Products of 8 rows of a matrix with a row of x."""

    def __init__(self, e: Emitter, settings: Mapping[str, Any], weight: Weight, channels: Value) -> None:
        self.e, self.b, self.weight, self.stored, self.channels = e, e.b, weight, weight.stored, channels
        self.at_once: int = settings["at_once"]
        self.kind, self.none = vector(self.at_once), e.zero(self.at_once)
        self.is_float4 = self.stored.code_dtype == "float4_e2m1fn"
        self.vectors, self.digits = settings["vectors"], settings["digits"]
        self.group = 8 * self.vectors  # columns with one factor
        self.width = channels if self.stored.block[2] == WHOLE else I64(self.stored.block[2])
        self.blocks = e.b.udiv(channels, self.width)
        self.scales = e.scratch
        self.groups = e.b.udiv(channels, I64(self.group))
        self.dots = Dots(
            e, weight, at_once=self.at_once, group=self.group, digits=self.digits, signed=settings["weight"].signed
        )
        self.is_one = self.stored.block[2] == self.group  # whether a block is one group
        self._place(e.at(self.scales, "float32", I64(ROWS * ROWS)))

    def of_row(self, row: Value) -> _Product:
        """The products with another row of x."""
        found, b = copy(self), self.b
        words = b.add(b.mul(self.channels, I64(self.digits)), b.mul(self.groups, I64(2)))
        found._place(self.e.at(self.factors, "float32", b.mul(row, words)))
        return found

    def _place(self, factors: Value) -> None:
        self.factors = factors
        self.sums = self.e.at(factors, "float32", self.groups)
        self.bytes = self.e.at(self.sums, "float32", self.groups)

    # --- x

    def read(self, x: Value, dtype: str) -> None:
        """Writes the digits of x, and the factors and sums of its groups and blocks."""
        with self.e.loop(I64(0), self.groups) as group:
            self._make_digits(dtype, x, group)
        if not self.is_one:
            self._add_sums()

    def _make_digits(self, dtype: str, x: Value, group: Value) -> None:
        e, b = self.e, self.b
        first = b.mul(group, I64(self.group))
        numbers = [e.load(x, dtype, b.add(first, I64(8 * n)), 8) for n in range(self.vectors)]
        codes, scale = whole_numbers(e, numbers, self.digits)
        total = b.fmul(sum_of(e, codes), scale)
        e.store(self.factors, "float32", group, b.fmul(scale, real(0.5)) if self.is_float4 else scale)
        e.store(self.sums, "float32", group, total)
        for n, whole in enumerate(codes):
            for digit, low in enumerate(digits_of(e, whole, self.digits)):
                within, size = n * 8 % self.at_once, self.dots.bytes_of_column
                begin = b.mul(b.add(first, I64(8 * n - within)), I64(size * self.digits))
                place = e.at(self.bytes, "int8", b.add(begin, I64(size * (self.at_once * digit + within))))
                b.store(self.dots.spread(low), place, align=4)

    def _add_sums(self) -> None:
        """Replaces the sums of groups by the sums of blocks."""
        e, b = self.e, self.b
        groups = b.udiv(self.width, I64(self.group))
        with e.loop(I64(0), self.blocks) as block:
            begin = b.mul(block, groups)
            total = e.sum(begin, b.add(begin, groups), lambda k, lanes: e.load(self.sums, "float32", k, lanes))
            e.store(self.sums, "float32", block, total)

    # --- rows of the weight

    def sums_of(self, first: Value) -> Value:
        """The dot products of 8 rows from `first`."""
        e, b = self.e, self.b
        sums = [Cell(b, self.kind, self.none) for _ in range(2)]
        terms = [Cell(b, vector(8), e.zero(8)) for _ in ORDER] if self.stored.has_terms else []
        one = Cell(b, vector(8), e.zero(8)) if terms else None
        with e.loop(I64(0), self.blocks, ROWS) as begin:
            end = e.minimum(b.add(begin, I64(ROWS)), self.blocks)
            place = self._read_scales(first, begin, end, terms, one)
            with e.loop(begin, end) as block:
                self._add_block(first, block, b.sub(block, place), sums)
        value = self.dots.totals(*(cell.get() for cell in sums))
        if one:
            columns = transposed(e, [cell.get() for cell in terms])
            while len(columns) > 1:
                columns = [b.fadd(columns[n], columns[n + 1]) for n in range(0, len(columns), 2)]
            value = b.fadd(value, b.fadd(columns[0], one.get()))
        return shuffled(b, value, value, [ORDER.index(row) for row in range(ROWS)])

    def _read_scales(self, first: Value, begin: Value, end: Value, terms: list[Cell], one: Cell | None) -> Value:
        """Writes the scales of up to 8 blocks, of 8 rows each, and adds their terms. Returns the first block written.

        The last 8 blocks are read together, even if some of them were read before; terms are added once.
        """
        e, b = self.e, self.b
        rows = [b.add(first, I64(row)) for row in ORDER]
        place = begin if self.stored.outer else e.minimum(begin, b.sub(end, I64(ROWS)))
        fits = b.icmp_signed("<=", b.add(place, I64(ROWS)), self.blocks)
        whole = b.and_(fits, b.icmp_signed(">=", place, I64(0)))
        with b.if_else(whole) as (all_of_them, some):
            with all_of_them:
                pairs = [self.weight.of_block(row, b.mul(place, self.width), ROWS) for row in rows]
                if terms:
                    lanes = vector(8, I64)([I64(lane) for lane in range(ROWS)])
                    is_new = b.icmp_signed(">=", lanes, e.spread(b.sub(begin, place), ROWS))
                    x = b.select(is_new, e.load(self.sums, "float32", place, ROWS), e.zero(ROWS))
                    for cell, (_, term) in zip(terms, pairs, strict=True):
                        cell.set(e.multiply_add(term, x, cell.get()))
                for n, value in enumerate(transposed(e, [scale for scale, _ in pairs])):
                    self._write_scales(b.add(place, I64(n)), I64(n), value)
            with some, e.loop(begin, end) as block:
                pairs = [self.weight.of_block(row, b.mul(block, self.width), 1) for row in rows]
                if one:
                    values = joined(b, [term for _, term in pairs])
                    x = e.spread(e.load(self.sums, "float32", block), ROWS)
                    one.set(e.multiply_add(values, x, one.get()))
                self._write_scales(block, b.sub(block, begin), joined(b, [scale for scale, _ in pairs]))
        return b.select(whole, place, begin)

    def _write_scales(self, block: Value, place: Value, value: Value) -> None:
        if self.is_one:
            value = self.b.fmul(value, self.e.spread(self.e.load(self.factors, "float32", block), 8))
        self.e.store(self.scales, "float32", self.b.mul(place, I64(ROWS)), value)

    def _add_block(self, first: Value, block: Value, place: Value, sums: list[Cell]) -> None:
        """Adds the products of a block, multiplied by its scales."""
        e, b = self.e, self.b
        begin = b.mul(block, self.width)
        scales = [self._four(b.add(b.mul(place, I64(ROWS)), I64(at))) for at in (0, 4)]
        if self.is_one:
            for cell, value, scale in zip(sums, self.dots.sums(self.bytes, first, begin), scales, strict=True):
                cell.set(e.multiply_add(value, scale, cell.get()))
            return
        parts = [Cell(b, self.kind, self.none) for _ in sums]
        with e.loop(I64(0), self.width, self.group) as within:
            k = b.add(begin, within)
            factor = e.spread(e.load(self.factors, "float32", b.udiv(k, I64(self.group))), self.at_once)
            for cell, value in zip(parts, self.dots.sums(self.bytes, first, k), strict=True):
                cell.set(e.multiply_add(value, factor, cell.get()))
        for cell, part, scale in zip(sums, parts, scales, strict=True):
            cell.set(e.multiply_add(part.get(), scale, cell.get()))

    def _four(self, at: Value) -> Value:
        """Four scales, each in all lanes of its row."""
        return self.dots.by_rows(self.e.load(self.scales, "float32", at, 4))
