# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""Writes elements to indexed positions, in a copy of a tensor or in a state.

If several elements have one position, the last is stored, or all are added. A thread writes some positions of the axes
without indices, so that no two threads write one element. An index outside its axis writes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Any

from bringup.compile.llvm.ir.code import Code, Index, Kind, kind_of
from bringup.compile.llvm.ir.dtypes import I64, POINTER
from bringup.compile.llvm.ir.emitter import Emitter, Value
from bringup.compile.llvm.ir.formulas import FORMULAS
from bringup.compile.llvm.ir.functions import maximum, minimum
from bringup.compile.llvm.ir.places import listed_of, spread_of
from bringup.compile.schedule.graph.op_graph import Buffer, Node, View
from bringup.spec import Shape

# (index of the thread's positions, index of the loop) -> (position in the tensor, value, whether it is written)
Moves = Callable[[Index, Index], tuple[Index, Value, Value]]


def put(e: Emitter, settings: Mapping[str, Any]) -> None:
    """Slots: the address of each buffer of `memory`. `target` is written; `rule` combines values ("" or `add`, …).

    With an axis `wide`, elements of a line along it are combined in float32 and rounded once, as torch does in
    `scatter_reduce`. Scratch memory holds the line.
    """
    buffers: dict[str, Buffer] = {buffer.name: buffer for buffer in settings["buffers"]}
    places = {name: e.slot(at, POINTER) for at, name in enumerate(settings["memory"])}
    node, target, wide = settings["node"], settings["target"], settings["wide"]
    code = Code(e, buffers, (), places, FORMULAS)
    memory, dtype = places[target.buffer], buffers[target.buffer].dtype
    kind = kind_of(dtype)
    outer, inner, moves = _MOVES[node.short.removesuffix("_")](code, node, target, kind)

    def element(place: Index) -> tuple[Value, str, Value]:
        if wide is None:
            return memory, dtype, code.number(target.strides, place, target.offset)
        return e.scratch, "float32", place[wide]

    begin, end = e.share(I64(prod(outer)))
    with e.loop(begin, end) as number:
        if wide is not None:
            _copy_line(code, memory, dtype, target, wide, code.unflat(number, outer), is_read=True)
        with e.loop(I64(0), I64(prod(inner))) as at:
            code.restart()
            place, value, is_inside = moves(code.unflat(number, outer), code.unflat(at, inner))
            with e.b.if_then(is_inside):
                where = element(place)
                if settings["rule"]:
                    value = _together(code, e.load(*where), value, kind, settings["rule"])
                e.store(*where, value)
        if wide is not None:
            _copy_line(code, memory, dtype, target, wide, code.unflat(number, outer), is_read=False)
    e.finish()


def _copy_line(code: Code, memory: Value, dtype: str, target: View, axis: int, own: Index, *, is_read: bool) -> None:
    """Copies a line of the target along an axis to scratch memory (`is_read`) or back."""
    e = code.e
    with e.loop(I64(0), I64(target.shape[axis])) as at:
        where = code.number(target.strides, (*own[:axis], at, *own[axis + 1 :]), target.offset)
        if is_read:
            e.store(e.scratch, "float32", at, e.load(memory, dtype, where))
        else:
            e.store(memory, dtype, where, e.load(e.scratch, "float32", at))


def _together(code: Code, before: Value, value: Value, kind: Kind, rule: str) -> Value:
    """Combines the stored element with the new one."""
    b, e = code.b, code.e
    if kind == "bool":
        return (b.and_ if rule in ("prod", "multiply", "amin") else b.or_)(before, value)
    real = kind != "int"
    match rule:
        case "add" | "sum":
            return b.fadd(before, value) if real else b.add(before, value)
        case "prod" | "multiply":
            return b.fmul(before, value) if real else b.mul(before, value)
        case _ if not real:
            return (e.maximum if rule == "amax" else e.minimum)(before, value)
        case _:
            found = (maximum if rule == "amax" else minimum)(e, value, before)
            return b.select(b.fcmp_unordered("uno", value, value), value, found)


def _indexed(code: Code, node: Node, target: View, kind: Kind) -> tuple[Shape, Shape, Moves]:
    """`index_put`: lists of positions on some axes."""
    listed = listed_of(node)
    first, inner = spread_of(listed)
    outer = tuple(size for view, size in zip(listed, target.shape, strict=True) if view is None)

    def moves(own: Index, at: Index) -> tuple[Index, Value, Value]:
        free, inside = iter(own), code.truth(value=True)
        place: list[Value] = []
        for view, size in zip(listed, target.shape, strict=True):
            if view is None:
                place.append(next(free))
                continue
            number, is_there = _number(code, code.argument(view, at, "int"), size)
            inside = code.b.and_(inside, is_there)
            place.append(number)
        value = code.argument(node.argument("values"), (*own[:first], *at, *own[first:]), kind)
        return tuple(place), value, inside

    return outer, inner, moves


def _number(code: Code, number: Value, size: int) -> tuple[Value, Value]:
    """A position on an axis, where -1 is the last, and whether it is valid."""
    b = code.b
    below = b.icmp_signed("<", number, I64(0))
    number = b.select(below, b.add(number, I64(size)), number)
    return number, b.icmp_unsigned("<", number, I64(size))


def _scattered(code: Code, node: Node, target: View, kind: Kind) -> tuple[Shape, Shape, Moves]:
    """`scatter`: a position on one axis for each element of the source."""
    axis, numbers = node.argument("dim"), node.argument("index")
    source = node.argument("src")
    given = node.argument("value") if source is None else source
    assert isinstance(axis, int)
    assert isinstance(numbers, View)
    axis %= max(len(target.shape), 1)
    size = target.shape[axis] if target.shape else 1
    outer = tuple(1 if n == axis else each for n, each in enumerate(numbers.shape))

    def moves(own: Index, at: Index) -> tuple[Index, Value, Value]:
        index = (*own[:axis], *at, *own[axis + 1 :])
        number, inside = _number(code, code.argument(numbers, index, "int"), size)
        value = code.argument(given, index, kind)
        return (*own[:axis], number, *own[axis + 1 :]) if target.shape else (), value, inside

    return outer, numbers.shape[axis : axis + 1], moves


def _copied(code: Code, node: Node, target: View, kind: Kind) -> tuple[Shape, Shape, Moves]:
    """`copy_` and `as_strided_scatter`: all elements of a view."""

    def moves(own: Index, at: Index) -> tuple[Index, Value, Value]:
        return own, code.argument(node.argument("src"), own, kind), code.truth(value=True)

    return target.shape, (), moves


_MOVES: Mapping[str, Callable[[Code, Node, View, Kind], tuple[Shape, Shape, Moves]]] = {
    **dict.fromkeys(("scatter", "scatter_add", "scatter_reduce"), _scattered),
    **dict.fromkeys(("copy", "as_strided_scatter"), _copied),
    "index_put": _indexed,
}
