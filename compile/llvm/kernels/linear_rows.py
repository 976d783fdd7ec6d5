# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""x · weightᵀ + bias of few rows: each thread reads its rows of the weight once, from begin to end.

Numbers of bfloat16 are read in pairs, and the rows of x are copied in the same order: in blocks of two vectors, the
even channels and then the odd ones.

M rows of x · N rows of the weight · K channels
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bringup.compile.llvm.ir.emitter import I64, POINTER, Cell, Emitter, Value, size_of, vector

CHAINS = 4  # sums of vectors that do not wait for each other, of one row
PAIRED_ROWS = 4  # of x, at most, for which two sums each are in registers
LINE = 64  # bytes of a cache line
# How far ahead a weight of 16 bits is fetched: its numbers take more instructions, so fewer loads are under way at a
# time. Of float32 it is slower at any distance (benchmarks/results/2026-11-23-llvm.md).
AHEAD = 16 * LINE


def linear_rows(e: Emitter, settings: Mapping[str, Any]) -> None:
    """Slots: x, its stride; weight, its stride; bias; out, which is dense; N; K. All strides count elements."""
    b, lanes = e.b, e.machine.lanes
    rows, out_dtype = settings["rows"], settings["out"]
    x, weight, bias, out = (e.slot(at, POINTER) for at in (0, 2, 4, 5))
    x_stride, w_stride, columns, channels = (e.slot(at, I64) for at in (1, 3, 6, 7))
    paired = settings["x"] == settings["weight"] == "bfloat16" and rows <= PAIRED_ROWS
    chains = max(2 if paired else 1, CHAINS // rows)
    step = chains * lanes
    whole = b.sub(channels, b.srem(channels, I64(step)))
    order = whole if paired else I64(0)  # channels that are in pairs
    x, x_stride = as_float32(e, settings["x"], x, x_stride, rows, channels, e.scratch, order)
    begin, end = e.share(columns)
    with e.loop(begin, end) as column:
        w = e.at(weight, settings["weight"], b.mul(column, w_stride))
        sums = [[Cell(b, vector(lanes), e.zero(lanes)) for _ in range(chains)] for _ in range(rows)]
        with e.loop(I64(0), whole, step) as k:
            for chain in range(0, chains, 2 if paired else 1):
                at = b.add(k, I64(chain * lanes))
                if size_of(settings["weight"]) == 2 and chain * lanes * 2 % LINE == 0:
                    e.prefetch(e.at(w, settings["weight"], at), AHEAD)
                factors = e.load_pairs(w, at, lanes) if paired else (e.load(w, settings["weight"], at, lanes),)
                for n, factor in enumerate(factors):
                    _add(e, factor, x, x_stride, b.add(at, I64(n * lanes)), [row[chain + n] for row in sums])
        rest = [Cell(b, vector(1), e.zero()) for _ in range(rows)]

        def add(k: Value, width: int, w: Value = w, sums: Any = sums, rest: Any = rest) -> None:
            factor = e.load(w, settings["weight"], k, width)
            _add(e, factor, x, x_stride, k, [row[0] for row in sums] if width > 1 else rest)

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
    e: Emitter, dtype: str, x: Value, stride: Value, rows: int, channels: Value, memory: Value, paired: Value
) -> tuple[Value, Value]:
    """Rows of x as float32, and their stride: those of 16 bits are copied to `memory`, `paired` channels in pairs."""
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


def _add(e: Emitter, factor: Value, x: Value, stride: Value, k: Value, sums: list[Cell]) -> None:
    """Adds the products of some numbers of the weight with those of x from k on, to the sum of each row."""
    lanes = getattr(factor.type, "count", 1)
    for row, cell in enumerate(sums):
        other = e.load(x, "float32", e.b.add(e.b.mul(I64(row), stride), k), lanes)
        cell.set(e.multiply_add(factor, other, cell.get()))
