# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false
"""x · weightᵀ + bias of few rows with 4-bit codes packed along columns, in integers, for processors with AVX2.

Codes are packed along columns if the number of rows is no multiple of the codes in a word, as of many vocabularies. A
word has 8 adjacent columns of a row, the even ones in the low halves of bytes. One instruction multiplies the low
halves of a vector with a digit of the even columns of x, another the high halves with one of the odd columns, and both
add to the same sums: a 32-bit lane has the sum of the columns of its word. Digits are those of `quant_digits`.

B blocks of M rows of x, each with the matrix of an expert · N rows of a matrix · K channels
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from functools import reduce
from typing import Any

from bringup.compile.llvm.ir.cell import Cell
from bringup.compile.llvm.ir.dtypes import I8, I32, I64
from bringup.compile.llvm.ir.emitter import Emitter, Value, real
from bringup.compile.llvm.ir.integers import add_fours
from bringup.compile.llvm.ir.lanes import vector
from bringup.compile.llvm.ir.vectors import FOUR, four_sums, shuffled
from bringup.compile.llvm.kernels.quant.rows import SLOTS, Blocks
from bringup.compile.llvm.kernels.quant.weight import Weight
from bringup.compile.llvm.kernels.quant.whole import digits_of, halves_of, in_integers, sum_of, whole_numbers
from bringup.compile.llvm.select.sizes import AHEAD
from bringup.compile.llvm.select.stored import WHOLE, Stored
from bringup.graphs.ops.quant_linear import COLUMNS

WORD = 8  # columns


def quant_along(e: Emitter, settings: Mapping[str, Any]) -> None:
    """Slots as those of `quant_rows`. A vector holds `words` words of a row; an element of x has `digits` digits.

    Scratch memory for each row of x: the factor and the sum of each word, then the digits, a byte each.
    """
    b, blocks = e.b, Blocks(e, settings)
    weight = Weight(e, in_integers(settings["weight"]), SLOTS)
    begin, end = e.share(blocks.columns, FOUR)
    middle = b.sub(end, b.srem(b.sub(end, begin), I64(FOUR)))

    def block(x: Value, bias: Value, out: Value, matrix: Value) -> None:
        product = _Product(e, settings, weight.matrix(matrix), blocks.channels)
        with e.loop(I64(0), blocks.rows) as row:
            product.of_row(row).read(e.at(x, settings["x"], b.mul(row, blocks.x_stride)), settings["x"])
        for start, stop, count in ((begin, middle, FOUR), (middle, end, 1)):
            with e.loop(start, stop, count) as column, e.loop(I64(0), blocks.rows) as row:
                value = product.of_row(row).sums(column, count)
                if settings["bias"]:
                    value = b.fadd(value, e.load(bias, settings["bias"], column, count))
                e.store(out, settings["out"], b.add(b.mul(row, blocks.columns), column), value)

    blocks.each(block)
    e.finish()


class _Product:
    """Products of rows of a matrix with a row of x."""

    def __init__(self, e: Emitter, settings: Mapping[str, Any], weight: Weight, channels: Value) -> None:
        self.e, self.b, self.weight, self.channels = e, e.b, weight, channels
        self.words, self.digits = settings["words"], settings["digits"]
        self.is_signed = settings["weight"].signed
        stored: Stored = weight.stored
        self.has_terms, self.is_float4 = stored.has_terms, stored.code_dtype == "float4_e2m1fn"
        self.step = WORD * self.words  # columns of a vector
        block = stored.block[2]
        self.blocks = 1 if block == WHOLE else max(1, self.step // block)  # in a vector
        self.count = e.b.udiv(channels, I64(WORD))
        self._place(e.scratch)

    def of_row(self, row: Value) -> _Product:
        """The products with another row of x."""
        found, b = copy(self), self.b
        size = b.add(b.mul(self.channels, I64(self.digits)), b.mul(self.count, I64(8)))
        found._place(self.e.at(self.factors, "int8", b.mul(row, size)))
        return found

    def _place(self, factors: Value) -> None:
        self.factors = factors
        self.totals = self.e.at(factors, "float32", self.count)
        self.bytes = self.e.at(self.totals, "float32", self.count)

    # --- x

    def read(self, x: Value, dtype: str) -> None:
        """Writes the digits and factors of x, and its sums over the columns of a vector that are in one block."""
        e, b = self.e, self.b
        together = COLUMNS // WORD if self.digits == 1 else 1  # words with one factor
        with e.loop(I64(0), self.count, together) as first:
            words = [b.add(first, I64(n)) for n in range(together)]
            codes, scale = whole_numbers(
                e, [e.load(x, dtype, b.mul(word, I64(WORD)), WORD) for word in words], self.digits
            )
            for word, whole in zip(words, codes, strict=True):
                e.store(self.factors, "float32", word, b.fmul(scale, real(0.5)) if self.is_float4 else scale)
                e.store(self.totals, "float32", word, b.fmul(sum_of(e, [whole]), scale))
                for digit, low in enumerate(digits_of(e, whole, self.digits)):
                    for odd in (0, 1):
                        b.store(shuffled(b, low, low, range(odd, WORD, 2)), self._at(word, digit, odd), align=4)
        if self.has_terms:
            size = self.words // self.blocks
            with e.loop(I64(0), b.udiv(self.count, I64(size))) as place:
                start = b.mul(place, I64(size))
                numbers = [e.load(self.totals, "float32", b.add(start, I64(n))) for n in range(size)]
                while len(numbers) > 1:
                    numbers = [b.fadd(numbers[n], numbers[n + 1]) for n in range(0, len(numbers), 2)]
                e.store(self.totals, "float32", place, numbers[0])

    def _at(self, word: Value, digit: int, odd: int) -> Value:
        """The address of a digit of the even or odd columns of a word. Those of the words of a vector are adjacent."""
        b = self.b
        within = b.urem(word, I64(self.words))
        begin = b.mul(b.sub(word, within), I64(WORD * self.digits))
        at = b.add(b.mul(within, I64(WORD // 2)), I64((2 * digit + odd) * self.words * WORD // 2))
        return self.e.at(self.bytes, "int8", b.add(begin, at))

    # --- rows of the weight

    def sums(self, first: Value, count: int) -> Value:
        """The dot products of `count` rows from `first`, 1 or 4, each read to its end."""
        pairs = [self._sum(self.b.add(first, I64(n))) for n in range(count)]
        found = [self._reduced([cell.get() for cell in cells]) for cells in zip(*pairs, strict=True)]
        return reduce(self.b.fadd, found)

    def _sum(self, row: Value) -> tuple[Cell, ...]:
        """The sums of a row by word, and, if the weight has terms, those of its terms by block."""
        e, b = self.e, self.b
        sums = Cell(b, vector(self.words), e.zero(self.words))
        terms = Cell(b, vector(self.blocks), e.zero(self.blocks)) if self.has_terms else None
        with e.loop(I64(0), self.channels, self.step) as k:
            word = b.udiv(k, I64(WORD))
            scale, term = self.weight.of_block(row, k, self.blocks)
            value = b.fmul(self._whole(row, k), e.load(self.factors, "float32", word, self.words))
            sums.set(e.multiply_add(value, self._by_word(scale), sums.get()))
            if terms:
                place = b.udiv(word, I64(self.words // self.blocks))
                terms.set(e.multiply_add(term, e.load(self.totals, "float32", place, self.blocks), terms.get()))
        return (sums, terms) if terms else (sums,)

    def _whole(self, row: Value, k: Value) -> Value:
        """The sum of code · x of each word of a vector: of the highest digit, times 256, then of the next."""
        e, b = self.e, self.b
        kind = vector(self.words, I32)
        e.prefetch(self.weight.along_at(row, k), AHEAD)
        words = self.weight.words_along(row, k, self.words)
        if self.is_signed:
            words = b.xor(words, kind([I32(0x88888888)] * self.words))
        word = b.udiv(k, I64(WORD))
        codes = halves_of(e, words, is_float4=self.is_float4)
        total = kind([I32(0)] * self.words)
        for n in reversed(range(self.digits)):
            pair = [b.load(self._at(word, n, odd), typ=vector(4 * self.words, I8), align=4) for odd in (0, 1)]
            if n < self.digits - 1:
                total = b.shl(total, kind([I32(8)] * self.words))
            total = add_fours(e, total, codes, pair)
        return b.sitofp(total, vector(self.words))

    def _by_word(self, scale: Value) -> Value:
        """The scale of each word of a vector."""
        if self.blocks == 1:
            return self.e.spread(scale, self.words)
        return shuffled(self.b, scale, scale, (n * self.blocks // self.words for n in range(self.words)))

    def _reduced(self, values: list[Value]) -> Value:
        return four_sums(self.e, values) if len(values) == FOUR else self.e.total(values[0])
