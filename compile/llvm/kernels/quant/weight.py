# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false
"""Elements of a packed weight from its codes: the formula of `graphs.ops.quantised`, in vectors."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import replace

from llvmlite import ir

from bringup.compile.llvm.ir.dtypes import F32, I8, I16, I32, I64, POINTER, STORED, size_of
from bringup.compile.llvm.ir.emitter import Emitter, Value, real
from bringup.compile.llvm.ir.lanes import constant, like, vector
from bringup.compile.llvm.ir.narrow import FLOAT8, Table16, looked_up
from bringup.compile.llvm.ir.vectors import joined, shuffled
from bringup.compile.llvm.select.stored import WHOLE, Stored

NARROW_ARRAYS = ("int32", "int8", "uint8")  # integer dtypes that are read as i32


class Weight:
    """The first of a weight's matrices. Its arrays have three slots each, from `slot`.

    Created at the start of a kernel, so that the slots are loaded once, into registers.
    """

    def __init__(self, e: Emitter, stored: Stored, slot: int) -> None:
        self.e, self.b, self.stored, self._matrix = e, e.b, stored, I64(0)
        self._arrays = {
            name: (e.slot(slot + 3 * number, POINTER), *(e.slot(slot + 3 * number + n, I64) for n in (1, 2)))
            for number, (name, _) in enumerate(stored.arrays)
        }
        self._table = Table16(e, self._place("table")) if stored.bits == 4 and stored.has("table") else None

    def matrix(self, number: Value) -> Weight:
        """Another of the weight's matrices."""
        found = copy(self)
        found._matrix = number
        return found

    # --- elements

    def row(self, row: Value, channels: Value, write: Callable[[Value, int, Value], None]) -> None:
        """Emits `write(k, lanes, elements)` for all columns of a row; scale and term are read once per block."""
        e, b, columns = self.e, self.b, self.block_columns
        if columns is None:
            e.each(I64(0), channels, lambda k, lanes: write(k, lanes, self.numbers(row, k, lanes)))
            return
        width = channels if columns == WHOLE else I64(columns)
        with e.loop(I64(0), channels, width) as begin:
            scale, term = self.of_block(row, begin, 1)

            def part(k: Value, lanes: int) -> None:
                write(k, lanes, self.number(self.codes(row, k, lanes), scale, term, lanes))

            e.each(begin, e.minimum(b.add(begin, width), channels), part)

    def numbers(self, row: Value, k: Value, lanes: int) -> Value:
        """Elements of columns from k, in float32; `lanes` divides k."""
        columns = self.block_columns
        if lanes > 1 and (columns is None or columns % lanes):
            return joined(self.b, [self.numbers(row, self.b.add(k, I64(lane)), 1) for lane in range(lanes)])
        return self.number(self.codes(row, k, lanes), *self.of_block(row, k, 1), lanes)

    def number(self, code: Value, scale: Value, term: Value | None, lanes: int) -> Value:
        """code · scale + term, for `lanes` codes as float32."""
        scale = self.e.spread(scale, lanes)
        if term is None:
            return self.b.fmul(code, scale)
        return self.e.multiply_add(code, scale, self.e.spread(term, lanes))

    @property
    def block_columns(self) -> int | None:
        """The number of columns with the same scale (WHOLE: all); None if that depends on the column."""
        stored = self.stored
        if stored.indexed >= 0:
            return None
        blocks = [stored.block[2], *stored.outer[2:]]
        found = min((block for block in blocks if block != WHOLE), default=WHOLE)
        fits = all(block == WHOLE or block % found == 0 for block in blocks) if found else True
        is_whole = found == WHOLE or found % self.e.machine.lanes == 0
        return found if fits and is_whole else None

    # --- codes

    def codes(self, row: Value, k: Value, lanes: int) -> Value:
        """Codes as float32, before the offset and zero points are subtracted."""
        stored, b = self.stored, self.b
        if stored.values == 1 and stored.code_dtype in FLOAT8:
            raw = b.load(self.e.at(self._codes(row), "int8", k), typ=vector(lanes, I8), align=1)
            return FLOAT8[stored.code_dtype](self.e, raw)
        return self.as_float(self._whole(row, k, lanes))

    def as_float(self, code: Value) -> Value:
        """The float32 of an i32 code, or of a vector of these."""
        stored, b = self.stored, self.b
        if stored.has("table"):
            if self._table and isinstance(code.type, ir.VectorType):
                return self._table.at(code)
            return looked_up(self.e, self._place("table"), code)
        if stored.signed and stored.bits < 8:
            half = constant(code.type, 1 << stored.bits - 1)
            code = b.sub(b.xor(code, half), half)
        return b.sitofp(code, like(code, F32))

    def _whole(self, row: Value, k: Value, lanes: int) -> Value:
        """The i32 codes of `lanes` columns of a row."""
        stored, b = self.stored, self.b
        dtype, values = stored.dtype("codes"), stored.values
        if values == 1:
            return self._integers(dtype, self._codes(row), k, lanes)
        if stored.axis == 1:
            line = self._codes(b.udiv(row, I64(values)))
            words = self._integers(dtype, line, k, lanes)
            shift = b.trunc(b.mul(b.urem(row, I64(values)), I64(stored.bits)), I32)
            return b.and_(b.lshr(words, self.e.spread(shift, lanes)), constant(words.type, (1 << stored.bits) - 1))
        line, first = self._codes(row), b.udiv(k, I64(values))
        count = max(1, lanes // values)
        words = self._integers(dtype, line, first, count)
        spread = self.e.spread(words, lanes) if count == 1 else _repeated(b, words, values)
        inside = b.trunc(b.mul(b.urem(k, I64(values)), I64(stored.bits)), I32)
        steps = [I32(lane % values * stored.bits) for lane in range(lanes)]
        shifts = self.e.spread(inside, lanes)
        shifts = b.add(shifts, vector(lanes, I32)(steps)) if lanes > 1 else shifts
        return b.and_(b.lshr(spread, shifts), constant(spread.type, (1 << stored.bits) - 1))

    def words(self, row: Value, k: Value, lanes: int) -> Value:
        """The words of the `values` rows from `row`, a multiple of `values`, in `lanes` columns from k."""
        return self.b.load(self.word_at(row, k), typ=vector(lanes, I32), align=4)

    def words_along(self, row: Value, k: Value, count: int) -> Value:
        """`count` words of 8 columns of a row from k, a multiple of 8, if codes are packed along columns."""
        return self.b.load(self.along_at(row, k), typ=vector(count, I32), align=1)

    def narrow(self, row: Value, k: Value, lanes: int) -> Value:
        """8-bit codes of `lanes` columns of a row, as i16."""
        stored, b = self.stored, self.b
        raw = b.load(self.byte_at(row, k), typ=vector(lanes, I8), align=1)
        return (b.sext if stored.dtype("codes") == "int8" else b.zext)(raw, vector(lanes, I16))

    def word_at(self, row: Value, k: Value) -> Value:
        """The address that `words` reads."""
        line = self._codes(self.b.udiv(row, I64(self.stored.values)))
        return self.e.at(line, self.stored.dtype("codes"), k)

    def along_at(self, row: Value, k: Value) -> Value:
        """The address that `words_along` reads."""
        return self.e.at(self._codes(row), self.stored.dtype("codes"), self.b.udiv(k, I64(self.stored.values)))

    def byte_at(self, row: Value, k: Value) -> Value:
        """The address that `narrow` reads."""
        return self.e.at(self._codes(row), "int8", k)

    # --- scales and terms

    def of_block(self, row: Value, k: Value, lanes: int) -> tuple[Value, Value | None]:
        """The scale and the term (None: 0) of `lanes` blocks, from the block of column k."""
        stored, b = self.stored, self.b
        scale = self._scaled("scales", "outer_scales", row, k, lanes)
        less: Value | None = real(-float(stored.offset), scale) if stored.offset else None
        if stored.has("zeros"):
            zeros = self._read("zeros", stored.block, row, k, lanes, stored.zero_bits)
            less = b.fneg(zeros) if less is None else b.fsub(less, zeros)
        term = None if less is None else b.fmul(less, scale)
        if stored.has("minimums"):
            minimum = self._scaled("minimums", "outer_minimums", row, k, lanes)
            term = minimum if term is None else b.fadd(term, minimum)
        return scale, term

    def _scaled(self, name: str, outer: str, row: Value, k: Value, lanes: int) -> Value:
        value = self._read(name, self.stored.block, row, k, lanes)
        if not self.stored.has(outer):
            return value
        return self.b.fmul(value, self._of_outer(outer, row, k, lanes))

    def _of_outer(self, name: str, row: Value, k: Value, lanes: int) -> Value:
        """The elements of an outer array for `lanes` blocks, each that of the outer block that contains it."""
        block, outer = self.stored.block, self.stored.outer
        if lanes == 1 or outer[2] == WHOLE or (block[2] and outer[2] % (block[2] * lanes) == 0):
            # The first block is a multiple of `lanes`, so all are in one outer block.
            return self.e.spread(self._read(name, outer, row, k, 1), lanes)
        columns = [self.b.add(k, I64(lane * block[2])) for lane in range(lanes)]
        return joined(self.b, [self._read(name, outer, row, at, 1) for at in columns])

    def _read(self, name: str, block: tuple[int, ...], row: Value, k: Value, lanes: int, signed_bits: int = 0) -> Value:
        """The elements of an array for `lanes` blocks, from the block of column k."""
        e, stored, b = self.e, self.stored, self.b
        outer = block is not stored.block
        place = self._at(name, self._index(0, self._matrix, block, outer), self._index(1, row, block, outer))
        at, dtype = self._index(2, k, block, outer), stored.dtype(name)
        if name == "scales" and stored.has("scale_table"):
            if stored.scale_dtype in FLOAT8:
                raw = b.load(e.at(place, "int8", at), typ=vector(lanes, I8), align=1)
                return FLOAT8[stored.scale_dtype](e, raw)
            return looked_up(e, self._place("scale_table"), self._integers(dtype, place, at, lanes))
        if dtype in NARROW_ARRAYS:
            whole = self._integers(dtype, place, at, lanes)
            if signed_bits:
                half = constant(whole.type, 1 << signed_bits - 1)
                whole = b.sub(b.xor(whole, half), half)
            return b.sitofp(whole, like(whole, F32))
        return e.load(place, dtype, at, lanes)

    def _index(self, axis: int, at: Value, block: tuple[int, ...], outer: bool) -> Value:
        if axis == self.stored.indexed and not outer:
            return self.b.sext(self._integers("int32", self._place("block_of"), at, 1), I64)
        size = block[axis]
        return I64(0) if size == WHOLE else at if size == 1 else self.b.udiv(at, I64(size))

    # --- arrays

    def _integers(self, dtype: str, place: Value, at: Value, lanes: int) -> Value:
        raw = self.b.load(self.e.at(place, dtype, at), typ=vector(lanes, STORED[dtype]), align=size_of(dtype))
        if dtype == "int32":
            return raw
        return (self.b.zext if dtype == "uint8" else self.b.sext)(raw, vector(lanes, I32))

    def _place(self, name: str) -> Value:
        return self._arrays[name][0]

    def _at(self, name: str, matrix: Value, row: Value) -> Value:
        """The address of a row of an array."""
        b, (place, of_matrices, of_rows) = self.b, self._arrays[name]
        begin = b.add(b.mul(matrix, of_matrices), b.mul(row, of_rows))
        return self.e.at(place, self.stored.dtype(name), begin)

    def _codes(self, row: Value) -> Value:
        return self._at("codes", self._matrix, row)


def from_zero(stored: Stored) -> Stored:
    """Signed codes as unsigned ones with a larger offset: the caller flips the highest bit of codes."""
    return replace(stored, signed=False, offset=stored.offset + 8) if stored.signed else stored


def _repeated(b: ir.IRBuilder, words: Value, times: int) -> Value:
    """Each element of a vector `times` times."""
    count = words.type.count
    return shuffled(b, words, words.type(ir.Undefined), [lane // times for lane in range(count * times)])
