# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""A strip of a packed weight: some of its rows, converted to float32, in scratch memory."""

from __future__ import annotations

from bringup.compile.llvm.ir.dtypes import I64
from bringup.compile.llvm.ir.emitter import Emitter, Value
from bringup.compile.llvm.ir.lanes import constant
from bringup.compile.llvm.kernels.quant.weight import Weight
from bringup.compile.llvm.select.sizes import APART, BLOCKS_AT_ONCE, STRIP
from bringup.compile.llvm.select.stored import WHOLE

TOGETHER = 4  # rows whose scales and terms are in registers
UNROLLED = 8  # maximum vectors of a block that are unrolled


def strip(e: Emitter, weight: Weight, first: Value, count: int, channels: Value) -> None:
    """Writes `count` rows from `first`. If `count` rows share words, each word is read for several rows at once.

    Scratch memory: STRIP rows, then the scales and terms of some of their blocks.
    """
    b, block = e.b, weight.block_columns
    if count == weight.stored.in_words == STRIP and block is not None:
        _Words(e, weight, first, block, channels).write()
        return
    with e.loop(I64(0), I64(count)) as n:
        place = e.at(e.scratch, "float32", b.mul(n, stride_of(e, channels)))
        weight.row(b.add(first, n), channels, lambda k, lanes, value: e.store(place, "float32", k, value))


def stride_of(e: Emitter, channels: Value) -> Value:
    """Elements between the rows of a strip. Rows are padded, so that they do not begin in the same set of a cache."""
    return e.b.add(channels, I64(APART))


class _Words:
    """STRIP rows that share words, from `first`, whose codes have the lowest bits."""

    def __init__(self, e: Emitter, weight: Weight, first: Value, block: int, channels: Value) -> None:
        self.e, self.b, self.weight, self.first, self.channels = e, e.b, weight, first, channels
        self.block, self.width = block, channels if block == WHOLE else I64(block)
        self.scales = e.at(e.scratch, "float32", e.b.mul(I64(STRIP), stride_of(e, channels)))
        self.terms = e.at(self.scales, "float32", I64(STRIP * BLOCKS_AT_ONCE))

    def write(self) -> None:
        """Writes all complete blocks, and the columns after them."""
        e, b = self.e, self.b
        blocks = b.udiv(self.channels, self.width)
        with e.loop(I64(0), blocks, BLOCKS_AT_ONCE) as begin:
            end = e.minimum(b.add(begin, I64(BLOCKS_AT_ONCE)), blocks)
            with e.loop(I64(0), I64(STRIP)) as row:
                self._read(row, begin, end)
            with e.loop(begin, end) as block:
                k = b.mul(block, self.width)
                self._write(b.sub(block, begin), k, b.add(k, self.width), is_whole=True)
        rest = b.mul(blocks, self.width)
        with b.if_then(b.icmp_signed("<", rest, self.channels)):
            with e.loop(I64(0), I64(STRIP)) as row:
                self._read(row, blocks, b.add(blocks, I64(1)))
            self._write(I64(0), rest, self.channels, is_whole=False)

    def _read(self, row: Value, begin: Value, end: Value) -> None:
        """Stores the scales and terms of some blocks of a row as float32."""
        e, b = self.e, self.b
        line = b.mul(row, I64(BLOCKS_AT_ONCE))

        def read(block: Value, lanes: int) -> None:
            at = b.add(line, b.sub(block, begin))
            scale, term = self.weight.of_block(b.add(self.first, row), b.mul(block, self.width), lanes)
            e.store(self.scales, "float32", at, scale)
            if term is not None:
                e.store(self.terms, "float32", at, term)

        e.each(begin, end, read)

    def _write(self, place: Value, begin: Value, end: Value, *, is_whole: bool) -> None:
        """Writes the columns of one block, TOGETHER rows at a time."""
        e, b, width = self.e, self.b, self.e.machine.lanes
        for row in range(0, STRIP, TOGETHER):
            pairs = [self._of_block(number, place) for number in range(row, row + TOGETHER)]
            count, more = divmod(self.block, width)
            if is_whole and 0 < count <= UNROLLED and not more:
                for number in range(count):
                    self._numbers(row, pairs, b.add(begin, I64(number * width)), width)
            else:
                e.each(begin, end, lambda k, lanes, row=row, pairs=pairs: self._numbers(row, pairs, k, lanes))

    def _of_block(self, row: int, place: Value) -> tuple[Value, Value | None]:
        at = self.b.add(I64(row * BLOCKS_AT_ONCE), place)
        scale = self.e.load(self.scales, "float32", at)
        return scale, self.e.load(self.terms, "float32", at) if self.weight.stored.has_terms else None

    def _numbers(self, row: int, pairs: list[tuple[Value, Value | None]], k: Value, lanes: int) -> None:
        """Writes columns from k of some rows, from row `row` of the strip."""
        b, weight, bits = self.b, self.weight, self.weight.stored.bits
        words = weight.words(self.first, k, lanes)
        for number, pair in enumerate(pairs, row):
            code = b.and_(b.lshr(words, constant(words.type, bits * number)), constant(words.type, (1 << bits) - 1))
            value = weight.number(weight.as_float(code), *pair, lanes)
            self.e.store(
                self.e.scratch, "float32", b.add(b.mul(I64(number), stride_of(self.e, self.channels)), k), value
            )
