# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportUnknownParameterType=false
"""Emitter: one function of LLVM IR, with loops, loads and stores in the dtypes of tensors, and vector sums.

Values are computed as float32 (a scalar or a vector), float64 stays float64, and integers are i64. Every kernel is a
function `(arguments, part, parts, scratch)` that computes one part of the work. `arguments` is an array of 8-byte
slots: addresses, i64 or float64. `scratch` is memory that only its thread uses.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

from llvmlite import ir

from bringup.compile.llvm.ir.cell import Cell
from bringup.compile.llvm.ir.dtypes import AS_STORED, F32, F64, I8, I16, I32, I64, NOTHING, POINTER, STORED, size_of
from bringup.compile.llvm.ir.halves import from_half, to_half
from bringup.compile.llvm.ir.lanes import constant, vector
from bringup.compile.llvm.ir.machine import Machine
from bringup.compile.llvm.ir.metadata import Distinct

Value = Any  # an ir.Value; llvmlite has no type annotations
KERNEL = ir.FunctionType(NOTHING, [POINTER, I64, I64, POINTER])


def real(value: float, like: Value | None = None) -> Value:
    """A float32 constant, or one of the type of `like`: a float64, or the same value in each lane of a vector."""
    return constant(F32 if like is None else like.type, value)


class Emitter:
    """The function that is emitted. `b` is llvmlite's builder, positioned at its end."""

    def __init__(self, module: ir.Module, name: str, machine: Machine, kind: ir.FunctionType = KERNEL) -> None:
        self.module, self.machine = module, machine
        self.function = ir.Function(module, kind, name)
        self.b = ir.IRBuilder(self.function.append_basic_block("entry"))
        self._accesses: ir.MDValue | None = None  # the access group of a loop with independent iterations

    @property
    def part(self) -> Value:
        """The number of this part of the work, from 0."""
        return self.function.args[1]

    @property
    def parts(self) -> Value:
        """The number of parts."""
        return self.function.args[2]

    @property
    def scratch(self) -> Value:
        """The address of the thread's scratch memory."""
        return self.function.args[3]

    def slot(self, at: int, kind: Any) -> Value:
        """Loads argument number `at` of the kernel, of type POINTER, I64 or F64."""
        return self.b.load(self.b.gep(self.function.args[0], [I64(at)], source_etype=I64), typ=kind, align=8)

    def intrinsic(self, name: str, kind: Any, arguments: list[Value], **settings: Any) -> Value:
        """Calls an intrinsic `llvm.…`. Its overloaded types are part of its name."""
        found = self.module.globals.get(name)
        if found is None:
            found = ir.Function(self.module, ir.FunctionType(kind, [each.type for each in arguments]), name)
        return self.b.call(found, arguments, **settings)

    # --- control flow

    @contextmanager
    def independent_loop(self, begin: Value, end: Value) -> Generator[Value]:
        """An innermost loop in which no iteration reads what another one writes.

        LLVM can vectorise it without a proof that tensors do not overlap: a result may share memory with its input.
        """
        self._accesses = accesses = Distinct(self.module, ())
        with self.loop(begin, end) as i:
            yield i
            self._accesses = None
            parallel = self.module.add_metadata(["llvm.loop.parallel_accesses", accesses])
            latch = self.b.block
        assert latch is not None
        for branch in (each for each in latch.instructions if each.opname == "br"):
            branch.set_metadata("llvm.loop", Distinct(self.module, (parallel,), is_loop=True))

    @contextmanager
    def loop(self, begin: Value, end: Value, step: int | Value = 1) -> Generator[Value]:
        """A loop over i64 values in begin:end; the `with` block emits its body."""
        b = self.b
        head, body, after = (self.function.append_basic_block(name) for name in ("head", "body", "after"))
        before = b.block
        b.branch(head)
        b.position_at_end(head)
        i = b.phi(I64)
        i.add_incoming(begin, before)
        b.cbranch(b.icmp_signed("<", i, end), body, after)
        b.position_at_end(body)
        yield i
        i.add_incoming(b.add(i, I64(step) if isinstance(step, int) else step), b.block)
        b.branch(head)
        b.position_at_end(after)

    def each(self, begin: Value, end: Value, body: Callable[[Value, int], None]) -> None:
        """Emits `body(i, lanes)` for begin:end: first in vectors of the machine's width, then element by element."""
        b, lanes = self.b, self.machine.lanes
        length = b.sub(end, begin)
        middle = b.add(begin, b.sub(length, b.srem(length, I64(lanes))))
        with self.loop(begin, middle, lanes) as i:
            body(i, lanes)
        with self.loop(middle, end) as i:
            body(i, 1)

    def sum(self, begin: Value, end: Value, term: Callable[[Value, int], Value]) -> Value:
        """The float32 sum of `term(i, lanes)` over begin:end."""
        lanes = self.machine.lanes
        many, one = Cell(self.b, vector(lanes), self.zero(lanes)), Cell(self.b, F32, self.zero())

        def add(i: Value, width: int) -> None:
            cell = many if width > 1 else one
            cell.set(self.b.fadd(cell.get(), term(i, width)))

        self.each(begin, end, add)
        return self.b.fadd(self.total(many.get()), one.get())

    def share(self, count: Value, each: int = 1) -> tuple[Value, Value]:
        """The range (begin, end) of this part among `count` items. `begin` is a multiple of `each`."""
        b = self.b
        blocks = b.udiv(b.add(count, I64(each - 1)), I64(each))

        def bound(part: Value) -> Value:
            return self.minimum(b.mul(b.udiv(b.mul(blocks, part), self.parts), I64(each)), count)

        return bound(self.part), bound(b.add(self.part, I64(1)))

    def library(self, name: str, arguments: list[Value]) -> Value:
        """Calls a function of C's library (ISO C, 7.12) on float64 values."""
        found = self.module.globals.get(name)
        if found is None:
            found = ir.Function(self.module, ir.FunctionType(F64, [F64] * len(arguments)), name)
        return self.b.call(found, arguments)

    def minimum(self, one: Value, other: Value) -> Value:
        """The smaller of two i64."""
        return self.b.select(self.b.icmp_signed("<", one, other), one, other)

    def maximum(self, one: Value, other: Value) -> Value:
        """The larger of two i64."""
        return self.b.select(self.b.icmp_signed(">", one, other), one, other)

    # --- memory

    def at(self, place: Value, dtype: str, index: Value) -> Value:
        """The address of element `index` of an array at address `place`."""
        return self.b.gep(place, [index], source_etype=STORED[dtype])

    def load(self, place: Value, dtype: str, index: Value, lanes: int = 1) -> Value:
        """Loads an element, or `lanes` consecutive ones, as float32, float64, i64 or i1."""
        b, kind = self.b, STORED[dtype]
        raw = self._accessed(b.load(self.at(place, dtype, index), typ=vector(lanes, kind), align=size_of(dtype)))
        if dtype in AS_STORED:
            return raw
        if dtype == "bfloat16":
            wide = b.zext(raw, vector(lanes, I32))
            return b.bitcast(b.shl(wide, constant(vector(lanes, I32), 16)), vector(lanes))
        if dtype == "float16":
            return from_half(b, self.machine, raw)
        if dtype == "bool":
            return b.icmp_unsigned("!=", raw, constant(vector(lanes, I8), 0))
        return (b.zext if dtype == "uint8" else b.sext)(raw, vector(lanes, I64))

    def load_pairs(self, place: Value, index: Value, lanes: int) -> tuple[Value, Value]:
        """The even and the odd elements of 2 · `lanes` consecutive bfloat16, as float32: one instruction each."""
        b, kind = self.b, vector(lanes, I32)
        both = b.load(self.at(place, "bfloat16", index), typ=kind, align=2)
        even, odd = b.shl(both, constant(kind, 16)), b.and_(both, constant(kind, 0xFFFF0000))
        return b.bitcast(even, vector(lanes)), b.bitcast(odd, vector(lanes))

    def store(self, place: Value, dtype: str, index: Value, value: Value, *, is_rounded: bool = False) -> None:
        """Stores a scalar or vector in a dtype. `is_rounded`: the value is exact in that dtype."""
        b, lanes = self.b, _lanes(value)
        if dtype == "bfloat16":
            value = self._cut(value) if is_rounded else self._upper_half(value)
        elif dtype == "float16":
            value = to_half(b, self.machine, value)
        elif dtype == "bool":
            value = b.zext(value, vector(lanes, I8))
        elif dtype not in AS_STORED:
            value = b.trunc(value, vector(lanes, STORED[dtype]))
        self._accessed(b.store(value, self.at(place, dtype, index), align=size_of(dtype)))

    def _accessed(self, instruction: Value) -> Value:
        if self._accesses is not None:
            instruction.set_metadata("llvm.access.group", self._accesses)
        return instruction

    def prefetch(self, place: Value, offset: int, *, level: int = 1) -> None:
        """Prefetches the cache line `offset` bytes after an address, for a read. The address may be invalid.

        `level` is the first cache that the line is loaded into: 1 or more. The L1 cache supports few outstanding loads.
        """
        far = self.b.gep(place, [I64(offset)], source_etype=I8)
        self.intrinsic("llvm.prefetch.p0", NOTHING, [far, I32(0), I32(4 - level), I32(1)])  # read, locality, data cache

    def rounded(self, value: Value, dtype: str) -> Value:
        """A float32 rounded to a dtype, as float32; an i64 wrapped to an integer dtype, as i64."""
        b, lanes = self.b, _lanes(value)
        if dtype == "bfloat16":
            wide = b.shl(b.zext(self._upper_half(value), vector(lanes, I32)), constant(vector(lanes, I32), 16))
            return b.bitcast(wide, value.type)
        if dtype == "float16":
            return from_half(b, self.machine, to_half(b, self.machine, value))
        if dtype in AS_STORED or dtype == "bool":
            return value
        narrow = b.trunc(value, vector(lanes, STORED[dtype]))
        return (b.zext if dtype == "uint8" else b.sext)(narrow, value.type)

    def _upper_half(self, value: Value) -> Value:
        """The bits of the nearest bfloat16, ties to even; NaN stays NaN."""
        b, lanes = self.b, _lanes(value)
        kind = vector(lanes, I32)
        bits = b.bitcast(value, kind)
        odd = b.and_(b.lshr(bits, constant(vector(lanes, I32), 16)), constant(vector(lanes, I32), 1))
        near = b.add(b.add(bits, odd), constant(vector(lanes, I32), 0x7FFF))
        is_nan = b.fcmp_unordered("uno", value, value)
        return self._cut(b.select(is_nan, b.or_(bits, constant(vector(lanes, I32), 0x400000)), near))

    def _cut(self, value: Value) -> Value:
        """The upper 16 bits of 32-bit elements."""
        b, lanes = self.b, _lanes(value)
        bits = b.bitcast(value, vector(lanes, I32))
        return b.trunc(b.lshr(bits, constant(vector(lanes, I32), 16)), vector(lanes, I16))

    # --- vectors

    def spread(self, value: Value, lanes: int) -> Value:
        """A vector with the same value in every lane (broadcast)."""
        if lanes == 1:
            return value
        kind = vector(lanes, value.type)
        first = self.b.insert_element(kind(ir.Undefined), value, I32(0))
        return self.b.shuffle_vector(first, kind(ir.Undefined), ir.VectorType(I32, lanes)([I32(0)] * lanes))

    def multiply_add(self, one: Value, other: Value, term: Value) -> Value:
        """one · other + term, fused (rounded once) if the processor supports that."""
        return self.intrinsic(f"llvm.fmuladd.{suffix(term)}", term.type, [one, other, term])

    def total(self, value: Value) -> Value:
        """The sum of all lanes, in any order."""
        if _lanes(value) == 1:
            return value
        name = f"llvm.vector.reduce.fadd.{suffix(value)}"
        return self.intrinsic(name, F32, [F32(0.0), value], fastmath=("reassoc",))

    def zero(self, lanes: int = 1) -> Value:
        """float32 zeros: a scalar, or a vector of `lanes`."""
        return constant(vector(lanes), 0.0)

    def finish(self) -> None:
        """Ends a function that returns nothing."""
        self.b.ret_void()


def suffix(value: Value) -> str:
    """The suffix of an intrinsic's name for the type of a float64, a float32 or a vector of float32."""
    if value.type == F64:
        return "f64"
    return f"v{value.type.count}f32" if isinstance(value.type, ir.VectorType) else "f32"


def _lanes(value: Value) -> int:
    return value.type.count if isinstance(value.type, ir.VectorType) else 1
