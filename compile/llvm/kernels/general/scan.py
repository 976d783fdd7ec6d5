# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""Scans along an axis: cumulative sums, products and extremes. Lines are divided among threads."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

from bringup.compile.llvm.ir.cell import Cell
from bringup.compile.llvm.ir.code import Code, Kind, is_real, kind_of
from bringup.compile.llvm.ir.dtypes import F64, I64, POINTER
from bringup.compile.llvm.ir.emitter import Emitter, Value
from bringup.compile.llvm.ir.formulas import FORMULAS
from bringup.compile.schedule.graph.op_graph import Buffer, Node, View, dense


def scan(e: Emitter, settings: Mapping[str, Any]) -> None:
    """Slots: the address of each buffer of `memory`, in order. `node` is `cumsum`, `cumprod`, `cummax` or `cummin`."""
    b = e.b
    buffers: dict[str, Buffer] = {buffer.name: buffer for buffer in settings["buffers"]}
    places = {name: e.slot(at, POINTER) for at, name in enumerate(settings["memory"])}
    node: Node = settings["node"]
    code = Code(e, buffers, (), places, FORMULAS)
    view, axis = node.arguments[0], node.argument("dim")
    assert isinstance(view, View)
    assert isinstance(axis, int)
    axis %= max(len(view.shape), 1)
    outputs = [buffers[name] for name in node.outputs]
    own = kind_of(buffers[view.buffer].dtype)
    kind: Kind = "double" if is_real(kind_of(outputs[0].dtype)) else "int"
    size = view.shape[axis] if view.shape else 1
    lines = tuple(1 if n == axis else each for n, each in enumerate(view.shape))
    begin, end = e.share(I64(prod(lines)))
    with e.loop(begin, end) as number:
        line = code.unflat(number, lines)
        first = 1 if node.short == "cumprod" else 0
        total = Cell(b, F64 if is_real(kind) else I64, F64(float(first)) if is_real(kind) else I64(first))
        at_best = Cell(b, I64, I64(0))
        with e.loop(I64(0), I64(size)) as at:
            code.restart()
            index = (*line[:axis], at, *line[axis + 1 :]) if view.shape else ()
            value, before = code.cast(code.at(view, index), own, kind), total.get()
            match node.short:
                case "cumsum":
                    found = b.fadd(before, value) if is_real(kind) else b.add(before, value)
                case "cumprod":
                    found = b.fmul(before, value) if is_real(kind) else b.mul(before, value)
                case _:  # the last of equal ones; NaN precedes all others, as in torch
                    sign = ">=" if node.short == "cummax" else "<="
                    is_better = b.icmp_signed("==", at, I64(0))
                    if is_real(kind):
                        is_nan = b.fcmp_unordered("uno", value, value)
                        is_better = b.or_(is_better, b.or_(b.fcmp_ordered(sign, value, before), is_nan))
                    else:
                        is_better = b.or_(is_better, b.icmp_signed(sign, value, before))
                    found = b.select(is_better, value, before)
                    at_best.set(b.select(is_better, at, at_best.get()))
            total.set(found)
            place = code.number(dense(outputs[0].shape), index)
            results: list[tuple[Value, Kind]] = [(found, kind), (at_best.get(), "int")]
            for buffer, (result, of) in zip(outputs, results, strict=False):
                e.store(places[buffer.name], buffer.dtype, place, code.cast(result, of, kind_of(buffer.dtype)))
    e.finish()
