# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""Batched x · matrix, for matrices with contiguous rows: a vector holds adjacent columns.

B batches · M rows · K channels · N columns
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from bringup.compile.llvm.ir.cell import Cell
from bringup.compile.llvm.ir.dtypes import I64, POINTER
from bringup.compile.llvm.ir.emitter import Emitter, Value
from bringup.compile.llvm.ir.lanes import vector

ROWS, VECTORS = 4, 2  # of a tile, whose accumulators are in registers
Factor = Callable[[int, Value], Value]  # (row of a tile, channel) -> the element of x


def matmul(e: Emitter, settings: Mapping[str, Any]) -> None:
    """Slots: x, its three strides; matrices, their strides of batches and channels; out, dense; B; M; K; N.

    A thread computes some blocks of columns.
    """
    b = e.b
    x, matrices, out = (e.slot(at, POINTER) for at in (0, 4, 7))
    x_batch, x_row, x_channel, batch_stride, stride = (e.slot(at, I64) for at in (1, 2, 3, 5, 6))
    batches, rows, channels, columns = (e.slot(at, I64) for at in (8, 9, 10, 11))
    width = I64(VECTORS * e.machine.lanes)
    each = b.udiv(b.add(columns, b.sub(width, I64(1))), width)
    begin, end = e.share(b.mul(batches, each))
    whole = b.sub(rows, b.srem(rows, I64(ROWS)))
    with e.loop(begin, end) as number:
        batch, first = b.udiv(number, each), b.mul(b.urem(number, each), width)
        last = e.minimum(b.add(first, width), columns)
        source = e.at(x, settings["x"], b.mul(batch, x_batch))
        matrix = e.at(matrices, settings["matrices"], b.mul(batch, batch_stride))
        for start, stop, count in ((I64(0), whole, ROWS), (whole, rows, 1)):
            with e.loop(start, stop, count) as row:
                place = b.add(b.mul(batch, rows), row)

                def factor(n: int, k: Value, row: Value = row, source: Value = source) -> Value:
                    at = b.add(b.mul(b.add(row, I64(n)), x_row), b.mul(k, x_channel))
                    return e.load(source, settings["x"], at)

                def write(n: int, at: Value, value: Value, place: Value = place) -> None:
                    e.store(out, settings["out"], b.add(b.mul(b.add(place, I64(n)), columns), at), value)

                combined(e, settings["matrices"], matrix, stride, channels, first, last, count, factor, write)
    e.finish()


def combined(
    e: Emitter, dtype: str, matrix: Value, stride: Value, channels: Value, first: Value, last: Value, rows: int,
    factor: Factor, write: Callable[[int, Value, Value], None],
) -> None:  # fmt: skip
    """`write(row, column, sums)`: columns first:last of the sum of a matrix's rows, each multiplied by its factor."""
    b, lanes = e.b, e.machine.lanes
    width = VECTORS * lanes
    middle = b.add(first, b.mul(b.sdiv(b.sub(last, first), I64(width)), I64(width)))
    for begin, end, vectors, size in ((first, middle, VECTORS, lanes), (middle, last, 1, 1)):
        with e.loop(begin, end, vectors * size) as column:
            sums = [[Cell(b, vector(size), e.zero(size)) for _ in range(vectors)] for _ in range(rows)]
            with e.loop(I64(0), channels) as k:
                place = b.add(b.mul(k, stride), column)
                numbers = [e.load(matrix, dtype, b.add(place, I64(n * size)), size) for n in range(vectors)]
                for row, cells in enumerate(sums):
                    by = e.spread(factor(row, k), size)
                    for cell, value in zip(cells, numbers, strict=True):
                        cell.set(e.multiply_add(by, value, cell.get()))
            for row, cells in enumerate(sums):
                for n, cell in enumerate(cells):
                    write(row, b.add(column, I64(n * size)), cell.get())
