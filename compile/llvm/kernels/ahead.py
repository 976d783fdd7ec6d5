# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""Hints that rows of a cache are read soon: of keys, or of values, some rows before they are read.

They go into the second cache. The first one waits for too few lines at a time for the rate of a memory's read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from bringup.compile.llvm.ir.emitter import I64, Emitter, Value, size_of
from bringup.compile.llvm.ir.vectors import FOUR
from bringup.compile.llvm.kernels.keys import Keys

LINE = 64  # bytes of a cache line
AHEAD = 12 << 10  # bytes between a row that is read and one that is fetched: of 8 to 24 KiB the best for most models
LEVEL = 2  # of the caches

RowOf = Callable[[Value], Value]  # number of a key -> its row, also past the last one


class Ahead:
    """Of the keys, or of the values."""

    def __init__(self, e: Emitter, keys: Keys, which: Literal["k", "v"]) -> None:
        self.e, self.dtype = e, str(keys.settings[which])
        self.memory, self.stride = (keys.k, keys.k_row) if which == "k" else (keys.v, keys.v_row)
        self.size = keys.settings["channels" if which == "k" else "values"]
        self.rows = e.b.udiv(I64(AHEAD // size_of(self.dtype)), self.stride)  # as many as AHEAD has

    def later(self, at: Value, row_of: RowOf) -> list[Value]:
        """Where the four rows are that follow AHEAD behind key number `at`."""
        return self.four(self.e.b.add(at, self.rows), row_of)

    def four(self, at: Value, row_of: RowOf) -> list[Value]:
        """Where the rows of four keys are."""
        b = self.e.b
        rows = [row_of(b.add(at, I64(n))) for n in range(FOUR)]
        return [self.e.at(self.memory, self.dtype, b.mul(row, self.stride)) for row in rows]

    def fetch(self, rows: list[Value], offset: Value) -> None:
        """Hints for what a group has of the rows, which begins `offset` numbers behind their start."""
        for row in rows:
            place = self.e.at(row, self.dtype, offset)
            for line in range(0, self.size * size_of(self.dtype), LINE):
                self.e.prefetch(place, line, level=LEVEL)
