# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false
"""x · weightᵀ + bias of many rows, tile by tile in registers (Goto and van de Geijn 2008).

Each thread packs panels of the weight in its scratch memory: as many rows as a tile has columns, transposed, in
float32. All rows of x are multiplied with them while they are in the cache. If the processor has dot products of
bfloat16 pairs, panels contain pairs of channels, and x is not converted.

M rows of x · N rows of the weight · K channels
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from bringup.compile.llvm.ir.cell import Cell
from bringup.compile.llvm.ir.dtypes import I64, POINTER
from bringup.compile.llvm.ir.emitter import Emitter, Value
from bringup.compile.llvm.ir.lanes import vector
from bringup.compile.llvm.ir.pairs import add_pairs, adds_pairs, last_pair, pairs_at
from bringup.compile.llvm.ir.vectors import joined, shuffled
from bringup.compile.llvm.kernels.activations import given_rows
from bringup.compile.llvm.select.sizes import BLOCK_ROWS, TILE_VECTORS, converts


def linear_tiles(e: Emitter, settings: Mapping[str, Any]) -> None:
    """Slots: x, its stride; weight, its stride; bias; out, dense; M; N; K; panels of scratch memory.

    Scratch memory has a row of a tile, up to BLOCK_ROWS rows of x if these are converted, and the panels. All strides
    count elements.
    """
    x, weight, bias, out = (e.slot(at, POINTER) for at in (0, 2, 4, 5))
    x_stride, w_stride, rows, columns, channels, most = (e.slot(at, I64) for at in (1, 3, 6, 7, 8, 9))
    b, last, pairs = e.b, e.b.sub(columns, I64(1)), adds_pairs(e.machine, settings)

    def numbers(row: Value, k: Value, lanes: int) -> Value:
        """Elements of the weight; rows past its end repeat the last one."""
        place = e.at(weight, settings["weight"], b.mul(e.minimum(row, last), w_stride))
        if not pairs:
            return e.load(place, settings["weight"], k, lanes)
        first = b.mul(k, I64(2))
        return b.bitcast(pairs_at(e, place, first, lanes) if lanes else last_pair(e, place, first), vector(lanes))

    tiles(e, settings, numbers, (x, bias, out), (x_stride, rows, columns, channels, most))
    e.finish()


def tiles(
    e: Emitter, settings: Mapping[str, Any], numbers: Callable[[Value, Value, int], Value],
    places: tuple[Value, Value, Value], sizes: tuple[Value, Value, Value, Value, Value],
) -> None:  # fmt: skip
    """`numbers(row, k, lanes)` loads elements of the weight. Places: x, bias, out; sizes: stride of x, M, N, K, panels.

    For products of pairs, it returns the bits of `lanes` pairs from pair k; if `lanes` is 0, a last channel and 0.
    """
    b, width = e.b, TILE_VECTORS * e.machine.lanes
    pairs = adds_pairs(e.machine, settings)
    tile, is_wide = settings["tile"], pairs or not converts(settings)
    dtype = "bfloat16" if pairs else "float32"  # of the rows of x that are multiplied
    (x, bias, out), (x_stride, rows, columns, channels, most) = places, sizes
    wide = packed = e.at(e.scratch, "float32", I64(width))
    if not is_wide:
        packed = e.at(wide, "float32", b.mul(e.minimum(rows, I64(BLOCK_ROWS)), channels))
    steps = b.udiv(b.add(channels, I64(1)), I64(2)) if pairs else channels
    size = b.mul(steps, I64(width))
    begin, end = e.share(b.udiv(b.add(columns, I64(width - 1)), I64(width)))

    def block(top: Value, bottom: Value, own: Value, stride: Value) -> None:
        """Computes the thread's columns for rows `top` to `bottom`; `own` is the address of these rows."""
        whole = b.sub(bottom, b.srem(b.sub(bottom, top), I64(tile)))
        with e.loop(begin, end, most) as first:
            last = e.minimum(b.add(first, most), end)
            with e.loop(first, last) as panel:
                place = e.at(packed, "float32", b.mul(b.sub(panel, first), size))
                _pack(e, numbers, b.mul(panel, I64(width)), channels, place, pairs=pairs)
            for start, stop, count in ((top, whole, tile), (whole, bottom, 1)):
                with e.loop(start, stop, count) as row, e.loop(first, last) as panel:
                    place = e.at(own, dtype, b.mul(b.sub(row, top), stride))
                    factors = e.at(packed, "float32", b.mul(b.sub(panel, first), size))
                    sums = _products(e, place, stride, factors, channels, count, pairs=pairs)
                    _store(e, settings, sums, out, bias, row, b.mul(panel, I64(width)), columns)

    if is_wide:
        block(I64(0), rows, x, x_stride)
    else:
        with e.loop(I64(0), rows, BLOCK_ROWS) as top:
            bottom = e.minimum(b.add(top, I64(BLOCK_ROWS)), rows)
            with e.loop(top, bottom) as row:
                place, to = (b.mul(row, x_stride), b.mul(b.sub(row, top), channels))
                source = e.at(x, settings["x"], place)
                given_rows(e, settings, source, x_stride, 1, channels, e.at(wide, "float32", to))
            block(top, bottom, wide, channels)


def _products(
    e: Emitter, x: Value, stride: Value, factors: Value, channels: Value, count: int, *, pairs: bool
) -> list[list[Value]]:
    """The sums of a tile: for each of its rows, `TILE_VECTORS` vectors."""
    b, lanes = e.b, e.machine.lanes
    cells = [[Cell(b, vector(lanes), e.zero(lanes)) for _ in range(TILE_VECTORS)] for _ in range(count)]

    def add(k: Value, number: Callable[[Value], Value], multiply: Callable[[Value, Value, Value], Value]) -> None:
        at = b.mul(k, I64(TILE_VECTORS * lanes))
        loaded = [e.load(factors, "float32", b.add(at, I64(n * lanes)), lanes) for n in range(TILE_VECTORS)]
        for row, sums in enumerate(cells):
            one = e.spread(number(b.mul(I64(row), stride)), lanes)
            for cell, other in zip(sums, loaded, strict=True):
                cell.set(multiply(one, other, cell.get()))

    if pairs:
        whole = b.udiv(channels, I64(2))

        def add_pair(k: Value, read: Callable[[Emitter, Value, Value], Value]) -> None:
            add(
                k,
                lambda place: read(e, x, b.add(place, b.mul(k, I64(2)))),
                lambda one, other, total: add_pairs(e, total, one, other),
            )

        with e.loop(I64(0), whole) as k:
            add_pair(k, lambda e, place, at: pairs_at(e, place, at, 1))
        with e.loop(whole, b.sub(channels, whole)) as k:
            add_pair(k, last_pair)
    else:
        with e.loop(I64(0), channels) as k:
            add(k, lambda place: e.load(x, "float32", b.add(place, k)), e.multiply_add)
    return [[cell.get() for cell in sums] for sums in cells]


def _store(
    e: Emitter, settings: Mapping[str, Any], sums: list[list[Value]], out: Value, bias: Value, row: Value,
    column: Value, columns: Value,
) -> None:  # fmt: skip
    """Writes a tile with its bias; in the last panel, only existing columns."""
    b, lanes = e.b, e.machine.lanes

    def write(place: Value, at: Value, value: Value, width: int) -> None:
        if settings["bias"]:
            value = b.fadd(value, e.load(bias, settings["bias"], at, width))
        e.store(out, settings["out"], b.add(place, at), value)

    inside = b.icmp_signed("<=", b.add(column, I64(TILE_VECTORS * lanes)), columns)
    with b.if_else(inside) as (all_of_it, part):
        with all_of_it:
            for n, values in enumerate(sums):
                place = b.mul(b.add(row, I64(n)), columns)
                for v, value in enumerate(values):
                    write(place, b.add(column, I64(v * lanes)), value, lanes)
        with part:
            for n, values in enumerate(sums):
                place = b.mul(b.add(row, I64(n)), columns)
                for v, value in enumerate(values):
                    e.store(e.scratch, "float32", I64(v * lanes), value)
                with e.loop(I64(0), b.sub(columns, column)) as i:
                    write(place, b.add(column, i), e.load(e.scratch, "float32", i), 1)


def _pack(
    e: Emitter, numbers: Callable[[Value, Value, int], Value], column: Value, channels: Value, place: Value, *,
    pairs: bool,
) -> None:  # fmt: skip
    """Writes the rows of a panel, transposed."""
    b, lanes = e.b, e.machine.lanes
    width, whole = TILE_VECTORS * lanes, b.udiv(channels, I64(2)) if pairs else channels
    with e.loop(I64(0), I64(width), lanes) as part:
        first = b.add(column, part)
        rows = [b.add(first, I64(n)) for n in range(lanes)]

        def write(k: Value, count: int, rows: list[Value] = rows, part: Value = part) -> None:
            loaded = [numbers(row, k, count) for row in rows]
            for n, value in enumerate(transposed(e, loaded) if count > 1 else [joined(e.b, loaded)]):
                e.store(place, "float32", b.add(b.mul(b.add(k, I64(n)), I64(width)), part), value)

        e.each(I64(0), whole, write)
        if pairs:
            with e.loop(whole, b.sub(channels, whole)) as k:
                write(k, 0)


def transposed(e: Emitter, rows: list[Value]) -> list[Value]:
    """The transpose of a square matrix in vectors, by exchanging one bit of the row and lane numbers at a time."""
    count = len(rows)
    bit = 1
    while bit < count:
        low = [lane if not lane & bit else count + lane - bit for lane in range(count)]
        high = [lane + bit if not lane & bit else count + lane for lane in range(count)]
        rows = list(rows)
        for n in range(count):
            if not n & bit:
                one, other = rows[n], rows[n | bit]
                rows[n], rows[n | bit] = (shuffled(e.b, one, other, mask) for mask in (low, high))
        bit *= 2
    return rows
