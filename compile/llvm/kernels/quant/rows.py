# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""x · weightᵀ + bias of few rows and a weight in few bits, of any form: each thread makes numbers of a row of it once.

B blocks of M rows of x, each with the matrix of an expert · N rows of a matrix · K channels
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from bringup.compile.llvm.ir.emitter import I64, POINTER, Emitter, Value
from bringup.compile.llvm.kernels.activations import given_rows
from bringup.compile.llvm.kernels.quant.weight import Weight

SLOTS = 11  # before those of the weight


def quant_rows(e: Emitter, settings: Mapping[str, Any]) -> None:
    """Slots: x, strides of its blocks and rows; bias, its stride; expert of each block; out, dense; B; M; N; K; weight.

    Scratch memory: a row of the weight in float32, and one of x where it is not.
    """
    b, blocks = e.b, Blocks(e, settings)
    weight = Weight(e, settings["weight"], SLOTS)
    numbers, wide = e.scratch, e.at(e.scratch, "float32", blocks.channels)
    begin, end = e.share(blocks.columns)

    def block(x: Value, bias: Value, out: Value, matrix: Value) -> None:
        own = weight.matrix(matrix)
        with e.loop(begin, end) as column:
            own.row(column, blocks.channels, lambda k, lanes, value: e.store(numbers, "float32", k, value))
            with e.loop(I64(0), blocks.rows) as row:
                place = e.at(x, settings["x"], b.mul(row, blocks.x_stride))
                given, _ = given_rows(e, settings, place, I64(0), 1, blocks.channels, wide)
                value = e.sum(
                    I64(0),
                    blocks.channels,
                    lambda k, lanes, given=given: b.fmul(
                        e.load(given, "float32", k, lanes), e.load(numbers, "float32", k, lanes)
                    ),
                )
                if settings["bias"]:
                    value = b.fadd(value, e.load(bias, settings["bias"], column))
                e.store(out, settings["out"], b.add(b.mul(row, blocks.columns), column), value)

    blocks.each(block)
    e.finish()


class Blocks:
    """The slots that products with a weight in few bits have in common."""

    def __init__(self, e: Emitter, settings: Mapping[str, Any]) -> None:
        self._e, self._settings = e, settings
        self._x, self._bias, self._expert, self._out = (e.slot(at, POINTER) for at in (0, 3, 5, 6))
        self._x_block, self.x_stride, self._bias_stride = (e.slot(at, I64) for at in (1, 2, 4))
        self._count, self.rows, self.columns, self.channels = (e.slot(at, I64) for at in (7, 8, 9, 10))

    def each(self, body: Callable[[Value, Value, Value, Value], None]) -> None:
        """`body(x, bias, out, matrix)` for all blocks: where each has its rows of x, bias and rows of the result."""
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
