# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false
"""Rows of x for products with packed weights: converted to float32, or rounded to int8.

The codes equal those of `graphs.ops.quant_linear.in_int8`: the same float32 divisions and products, and the same
rounding, by adding a number whose last bit is one. So every kernel and every processor computes the same codes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from llvmlite import ir

from bringup.compile.llvm.ir.cell import Cell
from bringup.compile.llvm.ir.dtypes import F32, I8, I32, I64
from bringup.compile.llvm.ir.emitter import Emitter, Value, real, suffix
from bringup.compile.llvm.ir.functions import absolute
from bringup.compile.llvm.ir.lanes import vector
from bringup.compile.llvm.kernels.linear_rows import as_float32
from bringup.graphs.ops.quant_linear import COLUMNS, LEAST

LARGEST = 127.0  # of an int8 code
ROUND = 1.5 * 2**23  # the sum of this and a code has the code in its low bits
EXPONENT = 0x7F800000  # mask of the exponent of a float32
CARRY = 0x1FFFF  # added to the bits of a float32, it carries into the exponent if the mantissa exceeds 127/64

Load = Callable[[Value, int], Value]  # (k, lanes) -> elements of x


def given_rows(
    e: Emitter, settings: Mapping[str, Any], x: Value, stride: Value, rows: int, channels: Value, memory: Value
) -> tuple[Value, Value]:
    """Rows of x as float32, and their stride. If the kernel `converts`, they are contiguous in `memory`."""
    if not settings.get("activations"):
        return as_float32(e, settings["x"], x, stride, rows, channels, memory, I64(0))
    b = e.b
    for row in range(rows):
        source, place = b.mul(I64(row), stride), b.mul(I64(row), channels)

        def load(k: Value, lanes: int, source: Value = source) -> Value:
            return e.load(x, settings["x"], b.add(source, k), lanes)

        with e.loop(I64(0), channels, COLUMNS) as begin:
            end = e.minimum(b.add(begin, I64(COLUMNS)), channels)
            step, scale = step_and_scale(e, load, begin, end)

            def write(k: Value, lanes: int, load: Load = load, place: Value = place, by: Any = (step, scale)) -> None:
                code = b.fsub(shifted_code(e, load(k, lanes), by[0]), real(ROUND, vector(lanes)(ir.Undefined)))
                e.store(memory, "float32", b.add(place, k), b.fmul(code, e.spread(by[1], lanes)))

            e.each(begin, end, write)
    return memory, channels


def step_and_scale(e: Emitter, load: Load, begin: Value, end: Value) -> tuple[Value, Value]:
    """For columns that share a scale: the factor from x to a code, and the factor from a code to x.

    The scale is NaN if an element is not finite.
    """
    b, width = e.b, e.machine.lanes
    tops = {lanes: Cell(b, vector(lanes), real(0.0, vector(lanes)(ir.Undefined))) for lanes in (width, 1)}
    nones = {lanes: Cell(b, vector(lanes), real(0.0, vector(lanes)(ir.Undefined))) for lanes in (width, 1)}

    def measure(k: Value, lanes: int) -> None:
        value = load(k, lanes)
        size, top = absolute(e, value), tops[lanes].get()
        tops[lanes].set(b.select(b.fcmp_ordered(">", size, top), size, top))
        nones[lanes].set(b.fadd(nones[lanes].get(), b.fmul(value, real(0.0, value))))

    e.each(begin, end, measure)
    many, one = tops[width].get(), tops[1].get()
    top = e.intrinsic(f"llvm.vector.reduce.fmax.{suffix(many)}", F32, [many])
    top = b.select(b.fcmp_ordered(">", top, one), top, one)
    return factors(e, top, b.fadd(e.total(nones[width].get()), nones[1].get()))


def factors(e: Emitter, top: Value, none: Value, largest: float = LARGEST) -> tuple[Value, Value]:
    """Like `step_and_scale`, from the largest magnitude of the elements and the sum of elements · 0."""
    b = e.b
    top = b.select(b.fcmp_ordered(">", top, real(LEAST)), top, real(LEAST))
    return b.fdiv(real(largest), top), b.fadd(b.fdiv(top, real(largest)), none)


def powers(e: Emitter, top: Value, none: Value, digits: int) -> tuple[Value, Value]:
    """Like `factors`, but powers of two, for codes of n bytes: the largest step with |x| · step ≤ 127 · 256^(n-1).

    With top = m · 2^p and 1 ≤ m < 2, the step is 2^(q-p), q = 8 · n - 2, or half of that if m > 127/64. So the scale is
    its exact inverse, and only the bits of x below 1 / step are rounded.
    """
    b, high = e.b, 8 * digits - 2
    top = b.select(b.fcmp_ordered(">", top, real(LEAST)), top, real(LEAST))
    power = b.and_(b.add(b.bitcast(top, I32), I32(CARRY)), I32(EXPONENT))
    step, scale = b.sub(I32((254 + high << 23) - 2**32), power), b.sub(power, I32(high << 23))
    return b.bitcast(step, F32), b.fadd(b.bitcast(scale, F32), none)


def shifted_code(e: Emitter, x: Value, step: Value) -> Value:
    """Codes plus `ROUND`, as float32."""
    lanes = getattr(x.type, "count", 1)
    return e.b.fadd(e.b.fmul(x, e.spread(step, lanes)), real(ROUND, x))


def whole_code(e: Emitter, shifted: Value) -> Value:
    """Codes as bytes, from the result of `shifted_code`."""
    lanes = getattr(shifted.type, "count", 1)
    return e.b.trunc(e.b.bitcast(shifted, vector(lanes, I32)), vector(lanes, I8))
