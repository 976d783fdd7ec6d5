# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""Reductions of many terms to one result: sums, extremes and their indices, matrix products, convolutions.

A thread computes some of the results. Floats are summed in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any

from bringup.compile.llvm.ir.cell import Cell
from bringup.compile.llvm.ir.code import Code, Index, Kind, is_real, kind_of
from bringup.compile.llvm.ir.dtypes import F64, I1, I64, POINTER
from bringup.compile.llvm.ir.emitter import Emitter, Value
from bringup.compile.llvm.ir.formulas import FORMULAS
from bringup.compile.llvm.kernels.general.terms import TERMS, Terms
from bringup.compile.schedule.graph.op_graph import Buffer, Node


def fold(e: Emitter, settings: Mapping[str, Any]) -> None:
    """Slots: the address of each buffer of `memory`, in order. `node` is one of `TERMS`."""
    buffers: dict[str, Buffer] = {buffer.name: buffer for buffer in settings["buffers"]}
    places = {name: e.slot(at, POINTER) for at, name in enumerate(settings["memory"])}
    node: Node = settings["node"]
    code = Code(e, buffers, (), places, FORMULAS)
    terms = TERMS[node.short](code, node)
    outputs = [buffers[name] for name in node.outputs]
    begin, end = e.share(I64(prod(outputs[0].shape)))
    with e.loop(begin, end) as number:
        code.restart()
        index = code.unflat(number, outputs[0].shape)
        found = _folded(code, terms, index)
        for buffer, (value, kind) in zip(outputs, found, strict=True):
            own = code.cast(value, kind, kind_of(buffer.dtype))
            e.store(places[buffer.name], buffer.dtype, number, own)
    e.finish()


def _folded(code: Code, terms: Terms, index: Index) -> list[tuple[Value, Kind]]:
    """The results at an index, each with its kind."""
    e, count = code.e, prod(terms.sizes)
    if terms.rule in ("max", "min"):
        return _extreme(code, terms, index)
    if terms.rule == "var":
        mean = code.b.fdiv(_total(e, terms, lambda at: terms.term(index, at)), F64(float(max(count, 1))))

        def square(at: Index) -> Value:
            rest = code.b.fsub(terms.term(index, at), mean)
            return code.b.fmul(rest, rest)

        squares = _total(e, terms, square)
        divisor = count - terms.correction
        variance = code.b.fdiv(squares, F64(float(divisor)) if divisor > 0 else F64(0.0))
        found: list[tuple[Value, Kind]] = [(variance, "double"), (mean, "double")]
        return found[: terms.results]
    value = _total(e, terms, lambda at: terms.term(index, at))
    if terms.rule == "mean":
        value = code.b.fdiv(value, F64(float(count)))
    if terms.finish is not None:
        value = terms.finish(index, value)
    return [(value, terms.kind)]


def _total(e: Emitter, terms: Terms, term: Callable[[Index], Value]) -> Value:
    """All terms combined, by a sum or the rule."""
    b, kind = e.b, terms.kind
    types = {"double": F64, "int": I64, "bool": I1}
    first = {"prod": 1, "all": 1}.get(terms.rule, 0)
    cell = Cell(b, types[kind], F64(float(first)) if is_real(kind) else types[kind](first))
    with _nested(e, terms.sizes) as at:
        value, before = term(at), cell.get()
        match terms.rule:
            case "prod":
                found = b.fmul(before, value) if is_real(kind) else b.mul(before, value)
            case "any":
                found = b.or_(before, value)
            case "all":
                found = b.and_(before, value)
            case _ if is_real(kind):
                found = b.fadd(before, value, flags=("reassoc",))  # pyright: ignore[reportCallIssue]
            case _:
                found = b.add(before, value)
        cell.set(found)
    return cell.get()


def _extreme(code: Code, terms: Terms, index: Index) -> list[tuple[Value, Kind]]:
    """The largest or the smallest term and its index: the first of equal ones; NaN takes precedence."""
    e, b = code.e, code.b
    is_real_kind = is_real(terms.kind)
    first = terms.term(index, tuple(I64(0) for _ in terms.sizes))
    best, at_best, number = Cell(b, first.type, first), Cell(b, I64, I64(0)), Cell(b, I64, I64(0))
    with _nested(e, terms.sizes) as at:
        value, before, here = terms.term(index, at), best.get(), number.get()
        sign = ">" if terms.rule == "max" else "<"
        if is_real_kind:
            is_nan = b.and_(b.fcmp_unordered("uno", value, value), b.fcmp_ordered("ord", before, before))
            is_better = b.or_(b.fcmp_ordered(sign, value, before), is_nan)
        else:
            is_better = b.icmp_signed(sign, value, before)
        best.set(b.select(is_better, value, before))
        at_best.set(b.select(is_better, here, at_best.get()))
        number.set(b.add(here, I64(1)))
    found: list[tuple[Value, Kind]] = [(best.get(), terms.kind), (at_best.get(), "int")]
    return found[1:] if terms.only_place else found[: terms.results]


@contextmanager
def _nested(e: Emitter, sizes: Sequence[int]) -> Generator[Index]:
    """Nested loops over the axes, the last one innermost."""
    if not sizes:
        yield ()
        return
    with e.loop(I64(0), I64(sizes[0])) as at, _nested(e, sizes[1:]) as rest:
        yield (at, *rest)
