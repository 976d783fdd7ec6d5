# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""Results of a group of element-wise operations, copies and gathers. Each thread computes some rows of each result."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

from bringup.compile.llvm.ir.code import Code
from bringup.compile.llvm.ir.dtypes import I64, POINTER
from bringup.compile.llvm.ir.emitter import Emitter, Value
from bringup.compile.llvm.ir.formulas import FORMULAS
from bringup.compile.schedule.graph.op_graph import Buffer


def elements(e: Emitter, settings: Mapping[str, Any]) -> None:
    """Slots: the address of each buffer of `memory`, in order. `results` are the buffers that are written."""
    buffers: dict[str, Buffer] = {buffer.name: buffer for buffer in settings["buffers"]}
    places = {name: e.slot(at, POINTER) for at, name in enumerate(settings["memory"])}
    code = Code(e, buffers, settings["nodes"], places, FORMULAS)
    for name in settings["results"]:
        _write(e, code, buffers[name], places[name])
    e.finish()


def _write(e: Emitter, code: Code, buffer: Buffer, place: Value) -> None:
    """A loop over rows around a loop along a row. If there is one row, each thread computes some of its columns."""
    b, lead, width = e.b, buffer.shape[:-1], buffer.shape[-1] if buffer.shape else 1
    rows = prod(lead)
    begin, end = e.share(I64(rows)) if rows > 1 else (I64(0), I64(rows))
    first, last = e.share(I64(width)) if rows == 1 else (I64(0), I64(width))
    with e.loop(begin, end) as row:
        index = code.unflat(row, lead)
        with e.independent_loop(first, last) as column:
            code.restart()
            value = code.element(buffer.name, (*index, column) if buffer.shape else ())
            e.store(place, buffer.dtype, b.add(b.mul(row, I64(width)), column), value, is_rounded=True)
