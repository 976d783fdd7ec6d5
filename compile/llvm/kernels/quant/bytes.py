# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false
"""x · weightᵀ + bias of few rows of int8 activations and 8-bit codes: integer sums, and a float factor for each scale.

A unit is a number of columns with one scale of x and one of the weight. All rows of x are quantised first. Then each
thread reads its rows of the weight once, and multiplies each with all rows of x while it is in the cache.

B blocks of M rows of x, each with the matrix of an expert · N rows of a matrix · K channels
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from typing import Any

from bringup.compile.llvm.ir.cell import Cell
from bringup.compile.llvm.ir.dtypes import I16, I64
from bringup.compile.llvm.ir.emitter import Emitter, Value
from bringup.compile.llvm.ir.integers import add_products
from bringup.compile.llvm.ir.lanes import vector
from bringup.compile.llvm.kernels.activations import shifted_code, step_and_scale, whole_code
from bringup.compile.llvm.kernels.quant.rows import SLOTS, Blocks
from bringup.compile.llvm.kernels.quant.weight import Weight
from bringup.compile.llvm.select.sizes import AHEAD, BLOCKS_AT_ONCE
from bringup.compile.llvm.select.stored import WHOLE, Stored
from bringup.graphs.ops.quant_linear import COLUMNS

CHAINS = 4  # independent accumulators
HALF = 16  # columns that one instruction multiplies
LANES = 8  # sums in its result


def quant_bytes(e: Emitter, settings: Mapping[str, Any]) -> None:
    """Slots as those of `quant_rows`. `unit` is 16 or 32.

    Scratch memory: some scales; for each row of x its int16 codes, the scale of each unit, the sum of each block.
    """
    b, blocks = e.b, Blocks(e, settings)
    weight = Weight(e, settings["weight"], SLOTS)
    begin, end = e.share(blocks.columns)

    def block(x: Value, bias: Value, out: Value, matrix: Value) -> None:
        product = _Product(e, settings, weight.matrix(matrix), blocks.channels)
        with e.loop(I64(0), blocks.rows) as row:
            product.of_row(row).read(e.at(x, settings["x"], b.mul(row, blocks.x_stride)), settings["x"])
        with e.loop(begin, end) as column, e.loop(I64(0), blocks.rows) as row:
            value = product.of_row(row).sum(column)
            if settings["bias"]:
                value = b.fadd(value, e.load(bias, settings["bias"], column))
            e.store(out, settings["out"], b.add(b.mul(row, blocks.columns), column), value)

    blocks.each(block)
    e.finish()


class _Product:
    """Products of a row of x with rows of a matrix."""

    def __init__(self, e: Emitter, settings: Mapping[str, Any], weight: Weight, channels: Value) -> None:
        self.e, self.b, self.weight, self.channels = e, e.b, weight, channels
        self.stored: Stored = weight.stored
        self.unit: int = settings["unit"]
        self.width = channels if self.stored.block[2] == WHOLE else I64(self.stored.block[2])
        self.blocks, self.units = e.b.udiv(channels, self.width), e.b.udiv(channels, I64(self.unit))
        self.is_one = self.stored.block[2] == self.unit  # whether a block is one unit
        self.scales = e.scratch
        self._place(e.at(e.scratch, "float32", I64(BLOCKS_AT_ONCE)))

    def of_row(self, row: Value) -> _Product:
        """The products of another row of x."""
        found, b = copy(self), self.b
        words = b.add(b.udiv(self.channels, I64(2)), b.add(self.units, self.blocks))
        found._place(self.e.at(self.codes, "float32", b.mul(row, words)))
        return found

    def _place(self, codes: Value) -> None:
        self.codes = codes
        self.factors = self.e.at(codes, "int16", self.channels)
        self.sums = self.e.at(self.factors, "float32", self.units)

    # --- x

    def read(self, x: Value, dtype: str) -> None:
        """Writes the codes of x, the scales of its units, and the sums of its blocks if the weight has terms."""
        e, b = self.e, self.b
        each = COLUMNS // self.unit

        def load(k: Value, lanes: int) -> Value:
            return e.load(x, dtype, k, lanes)

        with e.loop(I64(0), self.channels, COLUMNS) as begin:
            end = b.add(begin, I64(COLUMNS))
            step, scale = step_and_scale(e, load, begin, end)

            def write(k: Value, lanes: int, step: Value = step) -> None:
                code = whole_code(e, shifted_code(e, load(k, lanes), step))
                b.store(b.sext(code, vector(lanes, I16)), e.at(self.codes, "int16", k), align=2)

            e.each(begin, end, write)
            for number in range(each):
                e.store(self.factors, "float32", b.add(b.udiv(begin, I64(self.unit)), I64(number)), scale)
        if self.stored.has_terms:
            with e.loop(I64(0), self.blocks) as block:
                begin, total = b.mul(block, self.width), Cell(b, vector(1), e.zero())
                with e.loop(begin, b.add(begin, self.width), self.unit) as k:
                    ones = vector(HALF, I16)([I16(1)] * HALF)
                    found = self._of_unit(k, lambda _: ones)
                    factor = e.load(self.factors, "float32", b.udiv(k, I64(self.unit)))
                    total.set(e.multiply_add(e.total(found), factor, total.get()))
                e.store(self.sums, "float32", block, total.get())

    # --- rows of the weight

    def sum(self, row: Value) -> Value:
        """The dot product with a row of the weight."""
        e, b = self.e, self.b
        sums = [Cell(b, vector(LANES), e.zero(LANES)) for _ in range(CHAINS)]
        terms = {lanes: Cell(b, vector(lanes), e.zero(lanes)) for lanes in (e.machine.lanes, 1)}
        with e.loop(I64(0), self.blocks, BLOCKS_AT_ONCE) as begin:
            end = e.minimum(b.add(begin, I64(BLOCKS_AT_ONCE)), self.blocks)
            self._read_blocks(row, begin, end, terms)
            if self.is_one:
                self._add_units(row, begin, end, lambda at, begin=begin: (self.scales, b.sub(at, begin)), sums)
            else:
                self._add_blocks(row, begin, end, sums)
        value = sums[0].get()
        for cell in sums[1:]:
            value = b.fadd(value, cell.get())
        value = e.total(value)
        for cell in terms.values() if self.stored.has_terms else ():
            value = b.fadd(value, e.total(cell.get()))
        return value

    def _read_blocks(self, row: Value, begin: Value, end: Value, terms: Mapping[int, Cell]) -> None:
        """Writes the scales of some blocks of a row, and adds term · (sum of x) for each."""
        e, b = self.e, self.b

        def read(block: Value, lanes: int) -> None:
            scale, term = self.weight.of_block(row, b.mul(block, self.width), lanes)
            if self.is_one:
                scale = b.fmul(scale, e.load(self.factors, "float32", block, lanes))
            e.store(self.scales, "float32", b.sub(block, begin), scale)
            if term is not None:
                cell = terms[lanes]
                cell.set(e.multiply_add(term, e.load(self.sums, "float32", block, lanes), cell.get()))

        e.each(begin, end, read)

    def _add_blocks(self, row: Value, begin: Value, end: Value, sums: list[Cell]) -> None:
        """Adds the products of blocks that have several units each."""
        e, b = self.e, self.b
        units = b.udiv(self.width, I64(self.unit))
        with e.loop(begin, end) as block:
            first = b.mul(block, units)
            parts = [Cell(b, vector(LANES), e.zero(LANES)) for _ in sums]
            self._add_units(row, first, b.add(first, units), lambda at: (self.factors, at), parts)
            scale = e.spread(e.load(self.scales, "float32", b.sub(block, begin)), LANES)
            for cell, part in zip(sums, parts, strict=True):
                cell.set(e.multiply_add(part.get(), scale, cell.get()))

    def _add_units(
        self, row: Value, begin: Value, end: Value, scale_of: Callable[[Value], tuple[Value, Value]], sums: list[Cell]
    ) -> None:
        """Adds the products of units, multiplied by their scales: several units at a time, then one by one."""
        e, b = self.e, self.b

        def codes(k: Value) -> Value:
            return self.weight.narrow(row, k, HALF)

        def add(unit: Value, cell: Cell) -> None:
            e.prefetch(self.weight.byte_at(row, b.mul(unit, I64(self.unit))), AHEAD)
            found = self._of_unit(b.mul(unit, I64(self.unit)), codes)
            place, at = scale_of(unit)
            cell.set(e.multiply_add(found, e.spread(e.load(place, "float32", at), LANES), cell.get()))

        count = b.sub(end, begin)
        middle = b.add(begin, b.sub(count, b.srem(count, I64(len(sums)))))
        with e.loop(begin, middle, len(sums)) as unit:
            for number, cell in enumerate(sums):
                add(b.add(unit, I64(number)), cell)
        with e.loop(middle, end) as unit:
            add(unit, sums[0])

    def _of_unit(self, k: Value, codes: Callable[[Value], Value]) -> Value:
        """The sums of code · code over a unit: computed in integers, converted to float32 lanes."""
        e, b = self.e, self.b
        total: Value | None = None
        for half in range(0, self.unit, HALF):
            at = b.add(k, I64(half))
            x = b.load(e.at(self.codes, "int16", at), typ=vector(HALF, I16), align=2)
            total = add_products(e, total, x, codes(at))
        return b.sitofp(total, vector(LANES))
