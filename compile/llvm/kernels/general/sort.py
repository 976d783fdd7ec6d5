# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""Sorts lines: `sort`, `topk`, `kthvalue`. A thread sorts some lines, by merging sorted runs.

NaN is larger than all other elements. The sort is stable in both directions.
"""

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


def sort(e: Emitter, settings: Mapping[str, Any]) -> None:
    """Slots: the address of each buffer of `memory`. Elements `first`:`last` of each sorted line are written.

    Scratch memory has 3 8-byte words per element of a line.
    """
    buffers: dict[str, Buffer] = {buffer.name: buffer for buffer in settings["buffers"]}
    places = {name: e.slot(at, POINTER) for at, name in enumerate(settings["memory"])}
    node: Node = settings["node"]
    code = Code(e, buffers, (), places, FORMULAS)
    view, axis, descending = settings["view"], settings["axis"], settings["descending"]
    assert isinstance(view, View)
    outputs = [buffers[name] for name in node.outputs]
    own, size = kind_of(buffers[view.buffer].dtype), view.shape[axis] if view.shape else 1
    lines = tuple(1 if n == axis else each for n, each in enumerate(view.shape))
    keys = e.scratch
    runs = [e.at(e.scratch, "int64", I64(n * size)) for n in (1, 2)]
    begin, end = e.share(I64(prod(lines)))
    first, last = settings["first"], settings["last"]
    result = tuple(last - first if n == axis else each for n, each in enumerate(view.shape))
    with e.loop(begin, end) as number:
        line = code.unflat(number, lines)

        def placed(at: Value, line: tuple[Value, ...] = line) -> tuple[Value, ...]:
            return (*line[:axis], at, *line[axis + 1 :]) if view.shape else ()

        with e.loop(I64(0), I64(size)) as at:
            code.restart()
            e.store(keys, "int64", at, _key(code, code.at(view, placed(at)), own, descending=descending))
            e.store(runs[0], "int64", at, at)
        passes = max(size - 1, 0).bit_length()
        for n in range(passes):
            _merged(e, keys, runs[n % 2], runs[1 - n % 2], size, 1 << n)
        with e.loop(I64(first), I64(last)) as at:
            code.restart()
            chosen = e.load(runs[passes % 2], "int64", at)
            value = code.at(view, placed(chosen))
            place = code.number(dense(result), placed(e.b.sub(at, I64(first))))
            results: list[tuple[Value, Kind]] = [(value, own), (chosen, "int")]
            for buffer, (found, kind) in zip(outputs, results, strict=True):
                e.store(places[buffer.name], buffer.dtype, place, code.cast(found, kind, kind_of(buffer.dtype)))
    e.finish()


def _key(code: Code, value: Value, kind: Kind, *, descending: bool) -> Value:
    """An int64 with the same order as the element."""
    b = code.b
    if is_real(kind):
        wide = code.b.fadd(code.cast(value, kind, "double"), F64(0.0))  # -0 is 0
        bits = b.bitcast(wide, I64)
        mask = b.lshr(b.ashr(bits, I64(63)), I64(1))  # all bits but the sign, for negative numbers
        found = b.select(b.fcmp_unordered("uno", wide, wide), I64(2**63 - 1), b.xor(bits, mask))
    else:
        found = code.cast(value, kind, "int")
    return b.not_(found) if descending else found


def _merged(e: Emitter, keys: Value, source: Value, target: Value, size: int, width: int) -> None:
    """Merges sorted runs of `width` into runs of twice that."""
    b = e.b
    with e.loop(I64(0), I64(size), 2 * width) as begin:
        middle, end = (e.minimum(b.add(begin, I64(n * width)), I64(size)) for n in (1, 2))
        left, right = Cell(b, I64, begin), Cell(b, I64, middle)
        with e.loop(begin, end) as at:
            i, j = left.get(), right.get()
            one, other = (e.load(source, "int64", e.minimum(each, I64(size - 1))) for each in (i, j))
            is_before = b.icmp_signed("<=", e.load(keys, "int64", one), e.load(keys, "int64", other))
            has_right = b.icmp_signed("<", j, end)
            takes_left = b.and_(b.icmp_signed("<", i, middle), b.or_(b.not_(has_right), is_before))
            e.store(target, "int64", at, b.select(takes_left, one, other))
            left.set(b.select(takes_left, b.add(i, I64(1)), i))
            right.set(b.select(takes_left, j, b.add(j, I64(1))))
