# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""Prefetches rows of a cache, of keys or of values, some rows before they are read.

They are loaded into the L2 cache. The L1 cache supports too few outstanding loads to reach the memory's bandwidth.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from bringup.compile.llvm.ir.dtypes import I64, size_of
from bringup.compile.llvm.ir.emitter import Emitter, Value
from bringup.compile.llvm.ir.vectors import FOUR
from bringup.compile.llvm.kernels.keys import Keys

LINE = 64  # bytes of a cache line
AHEAD = 12 << 10  # bytes: prefetch distance, the fastest of 8 to 24 KiB for most models
LEVEL = 2  # of the caches

RowOf = Callable[[Value], Value]  # number of a key -> its row; also defined past the last key


class Ahead:
    """Prefetches the keys or the values of a sequence."""

    def __init__(self, e: Emitter, keys: Keys, which: Literal["k", "v"]) -> None:
        self.e, self.dtype = e, str(keys.settings[which])
        self.memory, self.stride = (keys.k, keys.k_row) if which == "k" else (keys.v, keys.v_row)
        self.size = keys.settings["channels" if which == "k" else "values"]
        self.rows = e.b.udiv(I64(AHEAD // size_of(self.dtype)), self.stride)  # rows in AHEAD bytes

    def later(self, at: Value, row_of: RowOf) -> list[Value]:
        """The addresses of the four rows that are AHEAD bytes after key number `at`."""
        return self.four(self.e.b.add(at, self.rows), row_of)

    def four(self, at: Value, row_of: RowOf) -> list[Value]:
        """The addresses of the rows of four keys."""
        b = self.e.b
        rows = [row_of(b.add(at, I64(n))) for n in range(FOUR)]
        return [self.e.at(self.memory, self.dtype, b.mul(row, self.stride)) for row in rows]

    def fetch(self, rows: list[Value], offset: Value) -> None:
        """Prefetches a key head's part of each row, which begins `offset` elements after the row's address."""
        for row in rows:
            place = self.e.at(row, self.dtype, offset)
            for line in range(0, self.size * size_of(self.dtype), LINE):
                self.e.prefetch(place, line, level=LEVEL)
