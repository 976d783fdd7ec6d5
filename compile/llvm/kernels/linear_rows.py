# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""x · weightᵀ + bias of few rows: each thread reads its rows of the weight once, from begin to end.

M rows of x · N rows of the weight · K channels
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bringup.compile.llvm.ir.emitter import I64, POINTER, Cell, Emitter, Value, vector

CHAINS = 4  # sums of vectors that do not wait for each other, of one row


def linear_rows(e: Emitter, settings: Mapping[str, Any]) -> None:
    """Slots: x, its stride; weight, its stride; bias; out, which is dense; N; K. All strides count elements."""
    b, lanes = e.b, e.machine.lanes
    rows, out_dtype = settings["rows"], settings["out"]
    x, weight, bias, out = (e.slot(at, POINTER) for at in (0, 2, 4, 5))
    x_stride, w_stride, columns, channels = (e.slot(at, I64) for at in (1, 3, 6, 7))
    x, x_stride = as_float32(e, settings["x"], x, x_stride, rows, channels, e.scratch)
    chains = max(1, CHAINS // rows)
    step = chains * lanes
    whole = b.sub(channels, b.srem(channels, I64(step)))
    begin, end = e.share(columns)
    with e.loop(begin, end) as column:
        w = e.at(weight, settings["weight"], b.mul(column, w_stride))
        sums = [[Cell(b, vector(lanes), e.zero(lanes)) for _ in range(chains)] for _ in range(rows)]
        with e.loop(I64(0), whole, step) as k:
            for chain in range(chains):
                _add(e, settings, w, x, x_stride, b.add(k, I64(chain * lanes)), [row[chain] for row in sums], lanes)
        rest = [Cell(b, vector(1), e.zero()) for _ in range(rows)]

        def add(k: Value, width: int, w: Value = w, sums: Any = sums, rest: Any = rest) -> None:
            _add(e, settings, w, x, x_stride, k, [row[0] for row in sums] if width > 1 else rest, width)

        e.each(whole, channels, add)
        for row in range(rows):
            value = sums[row][0].get()
            for cell in sums[row][1:]:
                value = b.fadd(value, cell.get())
            value = b.fadd(e.total(value), rest[row].get())
            if settings["bias"]:
                value = b.fadd(value, e.load(bias, settings["bias"], column))
            e.store(out, out_dtype, b.add(b.mul(I64(row), columns), column), value)
    e.finish()


def as_float32(
    e: Emitter, dtype: str, x: Value, stride: Value, rows: int, channels: Value, memory: Value
) -> tuple[Value, Value]:
    """Rows of x as float32, and their stride: those of 16 bits are copied to `memory`."""
    if dtype == "float32":
        return x, stride
    b = e.b
    for row in range(rows):
        source, place = b.mul(I64(row), stride), b.mul(I64(row), channels)

        def copy(k: Value, lanes: int, source: Value = source, place: Value = place) -> None:
            e.store(memory, "float32", b.add(place, k), e.load(x, dtype, b.add(source, k), lanes))

        e.each(I64(0), channels, copy)
    return memory, channels


def _add(
    e: Emitter, settings: Mapping[str, Any], w: Value, x: Value, stride: Value, k: Value, sums: list[Cell], lanes: int
) -> None:
    """Products of channels from k on, to the sum of each row."""
    factor = e.load(w, settings["weight"], k, lanes)
    for row, cell in enumerate(sums):
        other = e.load(x, "float32", e.b.add(e.b.mul(I64(row), stride), k), lanes)
        cell.set(e.multiply_add(factor, other, cell.get()))
