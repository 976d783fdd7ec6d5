# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""x · weightᵀ + bias of some rows and any packed weight, which is converted to float32 once, strip by strip.

A strip is some rows of the weight in float32. It stays in the cache while all rows of x are multiplied with it: `tile`
rows of x and two rows of the strip at a time, with accumulators in registers.

B blocks of M rows of x, each with the matrix of an expert · N rows of a matrix · K channels
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from bringup.compile.llvm.ir.cell import Cell
from bringup.compile.llvm.ir.dtypes import I64, POINTER
from bringup.compile.llvm.ir.emitter import Emitter, Value
from bringup.compile.llvm.ir.lanes import vector
from bringup.compile.llvm.kernels.activations import given_rows
from bringup.compile.llvm.kernels.quant.strip import stride_of, strip
from bringup.compile.llvm.kernels.quant.weight import Weight
from bringup.compile.llvm.select.sizes import APART, BLOCKS_AT_ONCE, STRIP, converts

SLOTS = 11  # before those of the weight
PAIR = 2  # rows of a strip whose accumulators are in registers


def quant_rows(e: Emitter, settings: Mapping[str, Any]) -> None:
    """Slots: x, strides of its blocks and rows; bias, its stride; expert of each block; out, dense; B; M; N; K; weight.

    `tile` rows of x are computed together, and `rest` rows after the last full tile. Scratch memory: a strip; M rows of
    x if these are converted.
    """
    b, blocks = e.b, Blocks(e, settings)
    rows, channels = blocks.rows, blocks.channels
    weight = Weight(e, settings["weight"], SLOTS)
    begin, end = e.share(blocks.columns, STRIP)
    middle = b.sub(end, b.srem(b.sub(end, begin), I64(STRIP)))
    whole = b.sub(rows, I64(settings["rest"]))

    def block(x: Value, bias: Value, out: Value, matrix: Value) -> None:
        own, stride = weight.matrix(matrix), blocks.x_stride
        if converts(settings):
            x, stride = _wide(e, settings, x, blocks), channels

        def store(row: Value, column: Value, value: Value) -> None:
            if settings["bias"]:
                value = b.fadd(value, e.load(bias, settings["bias"], column))
            e.store(out, settings["out"], b.add(b.mul(row, blocks.columns), column), value)

        for start, stop, count in ((begin, middle, STRIP), (middle, end, 1)):
            with e.loop(start, stop, count) as column:
                strip(e, own, column, count, channels)
                for first, last, tile in ((I64(0), whole, settings["tile"]), (whole, rows, settings["rest"])):
                    if not tile:
                        continue
                    width = min(count, PAIR)
                    with e.loop(first, last, tile) as row, e.loop(I64(0), I64(count), width) as n:
                        given = e.at(x, "float32", b.mul(row, stride))
                        numbers = e.at(e.scratch, "float32", b.mul(n, stride_of(e, channels)))
                        for (i, j), value in _sums(e, given, stride, tile, numbers, width, channels).items():
                            store(b.add(row, I64(i)), b.add(b.add(column, n), I64(j)), value)

    blocks.each(block)
    e.finish()


def _wide(e: Emitter, settings: Mapping[str, Any], x: Value, blocks: Blocks) -> Value:
    """The address of all rows of x in float32, contiguous."""
    b = e.b
    memory = e.at(e.scratch, "float32", b.mul(I64(STRIP), b.add(blocks.channels, I64(APART + 2 * BLOCKS_AT_ONCE))))
    with e.loop(I64(0), blocks.rows) as row:
        source = e.at(x, settings["x"], b.mul(row, blocks.x_stride))
        place = e.at(memory, "float32", b.mul(row, blocks.channels))
        given_rows(e, settings, source, I64(0), 1, blocks.channels, place)
    return memory


def _sums(
    e: Emitter, x: Value, stride: Value, tile: int, numbers: Value, width: int, channels: Value
) -> Mapping[tuple[int, int], Value]:
    """The dot products of `tile` rows of x with `width` rows of a strip, by (row of x, row of the strip)."""
    b, lanes = e.b, e.machine.lanes
    places = [(i, j) for i in range(tile) for j in range(width)]
    sums = {count: {at: Cell(b, vector(count), e.zero(count)) for at in places} for count in (lanes, 1)}

    def add(k: Value, count: int) -> None:
        factors = [
            e.load(numbers, "float32", b.add(b.mul(I64(j), stride_of(e, channels)), k), count) for j in range(width)
        ]
        for i in range(tile):
            own = e.load(x, "float32", b.add(b.mul(I64(i), stride), k), count)
            for j, factor in enumerate(factors):
                cell = sums[count][i, j]
                cell.set(e.multiply_add(own, factor, cell.get()))

    e.each(I64(0), channels, add)
    return {at: b.fadd(e.total(sums[lanes][at].get()), sums[1][at].get()) for at in places}


class Blocks:
    """The slots that all products with a packed weight share."""

    def __init__(self, e: Emitter, settings: Mapping[str, Any]) -> None:
        self._e, self._settings = e, settings
        self._x, self._bias, self._expert, self._out = (e.slot(at, POINTER) for at in (0, 3, 5, 6))
        self._x_block, self.x_stride, self._bias_stride = (e.slot(at, I64) for at in (1, 2, 4))
        self._count, self.rows, self.columns, self.channels = (e.slot(at, I64) for at in (7, 8, 9, 10))

    def each(self, body: Callable[[Value, Value, Value, Value], None]) -> None:
        """`body(x, bias, out, matrix)` for each block: addresses of its rows of x, bias and result; its matrix."""
        e, b, settings = self._e, self._e.b, self._settings
        if not settings["experts"]:
            body(self._x, self._bias, self._out, I64(0))
            return
        with e.loop(I64(0), self._count) as block:
            matrix = e.load(self._expert, settings["experts"], block)
            if settings["experts"] != "int64":
                matrix = b.sext(matrix, I64) if matrix.type != I64 else matrix
            bias = self._bias
            if settings["bias"]:
                bias = e.at(bias, settings["bias"], b.mul(matrix, self._bias_stride))
            out = e.at(self._out, settings["out"], b.mul(block, b.mul(self.rows, self.columns)))
            body(e.at(self._x, settings["x"], b.mul(block, self._x_block)), bias, out, matrix)
