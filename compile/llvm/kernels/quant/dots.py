# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false
"""Dot products of 4-bit codes with 8-bit digits of x, over the columns with one factor.

The bytes of words are permuted so that a 32-bit lane has four columns of one row. With 8 lanes, four adjacent lanes are
four rows, and the digits of x are stored four times. With 16 lanes, they are one row, and digits are stored once.
"""

from __future__ import annotations

from bringup.compile.llvm.ir.cell import Cell
from bringup.compile.llvm.ir.dtypes import I8, I16, I32, I64
from bringup.compile.llvm.ir.emitter import Emitter, Value, real
from bringup.compile.llvm.ir.integers import add_bytes, adds_bytes
from bringup.compile.llvm.ir.lanes import constant, vector
from bringup.compile.llvm.ir.vectors import shuffled
from bringup.compile.llvm.kernels.quant.weight import Weight
from bringup.compile.llvm.kernels.quant.whole import halves_of
from bringup.compile.llvm.select.sizes import AHEAD

BYTES, SHORTS, WORDS, FLOATS = vector(32, I8), vector(16, I16), vector(8, I32), vector(8)


class Dots:
    """A vector holds the words of `at_once` columns, 8 or 16.

    `group` columns have one factor. Magnitudes of x are below 127/128 · 2^(8 · digits - 1).
    """

    def __init__(self, e: Emitter, weight: Weight, *, at_once: int, group: int, digits: int, signed: bool) -> None:
        self.e, self.b, self.weight = e, e.b, weight
        self.at_once, self.group, self.digits, self.is_signed = at_once, group, digits, signed
        self.is_float4 = weight.stored.code_dtype == "float4_e2m1fn"

    def sums(self, place: Value, first: Value, k: Value) -> list[Value]:
        """The sums of code · x over a group of columns from k, as float32, of 8 rows from `first`.

        First those of rows in the low halves of bytes, then the others. `place` is the address of the digits of x.
        """
        if adds_bytes(self.e, self.at_once) and (self.digits == 1 or self.at_once == 16):
            return self._in_bytes(place, first, k)
        return self._in_int8(place, first, k) if self.digits == 1 else self._in_digits(place, first, k)

    def _in_bytes(self, place: Value, first: Value, k: Value) -> list[Value]:
        """With dot products of bytes: the sum of upper digits, times 256, is the accumulator of the next digit.

        No sum overflows: if a group has 64 columns, each of the 16 lanes adds 16 codes below 16; if it has 32, 8 codes
        below 25.
        """
        e, b = self.e, self.b
        kind = vector(self.at_once, I32)
        steps = range(0, self.group, self.at_once)
        codes = [self._fetched(first, b.add(k, I64(at))) for at in steps]
        sums: list[Value] = [constant(kind, 0)] * 2
        for digit in reversed(range(self.digits)):
            if digit < self.digits - 1:
                sums = [b.shl(each, constant(kind, 8)) for each in sums]
            for at, halves in zip(steps, codes, strict=True):
                x = self._digits(place, b.add(k, I64(at)), digit)
                sums = [add_bytes(e, total, half, x) for total, half in zip(sums, halves, strict=True)]
        return [b.sitofp(each, vector(self.at_once)) for each in sums]

    def _in_int8(self, place: Value, first: Value, k: Value) -> list[Value]:
        """One digit, without that instruction: 16-bit sums."""
        sums: list[Value] = [constant(SHORTS, 0)] * 2
        for at in range(0, self.group, self.at_once):
            own = self.b.add(k, I64(at))
            x = self._digits(place, own, 0)
            for half, codes in enumerate(self._fetched(first, own)):
                products = self.e.intrinsic("llvm.x86.avx2.pmadd.ub.sw", SHORTS, [codes, x])
                sums[half] = self.b.add(sums[half], products)
        return [self._number([each]) for each in sums]

    def _in_digits(self, place: Value, first: Value, k: Value) -> list[Value]:
        """Several digits, without that instruction: a 16-bit sum for each digit."""
        e, b = self.e, self.b
        none = SHORTS([I16(0)] * 16)
        sums = [[Cell(b, SHORTS, none) for _ in range(self.digits)] for _ in range(2)]
        with e.loop(I64(0), I64(self.group), self.at_once) as within:
            at = b.add(k, within)
            numbers = [self._digits(place, at, digit) for digit in range(self.digits)]
            for cells, codes in zip(sums, self._codes(first, at), strict=True):
                for cell, x in zip(cells, numbers, strict=True):
                    products = e.intrinsic("llvm.x86.avx2.pmadd.ub.sw", SHORTS, [codes, x])
                    cell.set(b.add(cell.get(), products))
        return [self._number([cell.get() for cell in cells]) for cells in sums]

    @property
    def bytes_of_column(self) -> int:
        """Bytes per column and digit in memory. The lowest digits of `at_once` columns are first."""
        return 4 if self.at_once == 8 else 1

    def spread(self, digits: Value) -> Value:
        """The digits of 8 columns in their memory layout."""
        if self.at_once != 8:
            return digits
        fours = self.b.bitcast(digits, vector(2, I32))
        return shuffled(self.b, fours, fours, [0] * 4 + [1] * 4)

    def by_rows(self, four: Value) -> Value:
        """Values of four rows, each broadcast to all lanes of its row."""
        lanes = [lane % 4 if self.at_once == 8 else lane // 4 for lane in range(self.at_once)]
        return shuffled(self.b, four, four, lanes)

    def totals(self, low: Value, high: Value) -> Value:
        """The sums over the lanes of each of four rows, and of four other rows."""
        b = self.b
        if self.at_once == 8:
            one_half = shuffled(b, low, high, [*range(4), *range(8, 12)])
            return b.fadd(one_half, shuffled(b, low, high, [*range(4, 8), *range(12, 16)]))
        evens = [first + lane for first in range(0, 16, 4) for lane in (0, 2, 16, 18)]
        first, second = (shuffled(b, low, high, [lane + odd for lane in evens]) for odd in (0, 1))
        pairs = b.fadd(first, second)
        rows = [first + lane for lane in (0, 2) for first in range(0, 16, 4)]
        first, second = (shuffled(b, pairs, pairs, [lane + odd for lane in rows]) for odd in (0, 1))
        return b.fadd(first, second)

    def _digits(self, place: Value, at: Value, digit: int) -> Value:
        """One digit of `at_once` elements of x, for every row."""
        b, size = self.b, self.bytes_of_column
        offset = b.add(b.mul(at, I64(size * self.digits)), I64(size * self.at_once * digit))
        own = self.e.at(place, "int8", offset)
        if self.at_once == 8:
            return b.load(own, typ=BYTES, align=4)
        four = b.load(own, typ=vector(4, I32), align=4)
        return shuffled(b, four, four, [0, 1, 2, 3] * 4)

    def _fetched(self, first: Value, k: Value) -> list[Value]:
        """The codes of `_codes`. Words of 8 columns are half a cache line, so later ones are prefetched."""
        if self.at_once == 8:
            self.e.prefetch(self.weight.word_at(first, k), AHEAD)
        return self._codes(first, k)

    def _codes(self, first: Value, k: Value) -> list[Value]:
        """Codes as bytes: for each four columns, four rows."""
        b, size = self.b, 4 * self.at_once
        words, kind = self.weight.words(first, k, self.at_once), vector(self.at_once, I32)
        if self.is_signed:
            words = b.xor(words, constant(kind, 0x88888888))
        if self.at_once == 8:
            order = [16 * (at // 16) + 4 * (at % 4) + at % 16 // 4 for at in range(size)]
        else:
            order = [4 * (at % 16) + at // 16 for at in range(size)]
        raw: Value = b.bitcast(words, vector(size, I8))
        if self.at_once == 8:
            moved = b.bitcast(shuffled(b, raw, raw, order), kind)
        else:  # for this shuffle, LLVM would emit two instructions
            places = raw.type([I8(at) for at in order])
            moved = self.e.intrinsic("llvm.x86.avx512.permvar.qi.512", raw.type, [raw, places])
            moved = b.bitcast(moved, kind)
        return halves_of(self.e, moved, is_float4=self.is_float4)

    def _number(self, sums: list[Value]) -> Value:
        """The sum of digit sums, lowest digit first, weighted by powers of 256. The upper two are added exactly."""
        b = self.b

        def pairs(value: Value, by: int) -> Value:
            return self.e.intrinsic("llvm.x86.avx2.pmadd.wd", WORDS, [value, constant(SHORTS, by)])

        if self.digits == 1:
            return b.sitofp(pairs(sums[0], 1), FLOATS)
        upper = b.sitofp(b.add(pairs(sums[-1], 256), pairs(sums[-2], 1)), FLOATS)
        if len(sums) == 2:
            return upper
        return self.e.multiply_add(upper, real(256.0, upper), b.sitofp(pairs(sums[0], 1), FLOATS))
