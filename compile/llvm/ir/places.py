# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""Formulas of operations that move elements: copies, concatenation, padding, gathers and constants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bringup.compile.llvm.ir.code import Code, Formula, Index, Kind, is_real, kind_of
from bringup.compile.llvm.ir.dtypes import F32, F64, I32, I64
from bringup.compile.llvm.ir.emitter import Value
from bringup.compile.schedule.graph.op_graph import Argument, Node, View


def kind_of_result(code: Code, node: Node) -> Kind:
    """The kind in which a node's first result is computed."""
    return kind_of(code.buffers[node.outputs[0]].dtype)


def wrapped(code: Code, place: Value, size: int) -> Value:
    """An index on an axis of `size` elements: negative ones count from the end; those out of range are clamped."""
    below = code.b.icmp_signed("<", place, I64(0))
    place = code.b.select(below, code.b.add(place, I64(size)), place)
    return code.e.minimum(code.e.maximum(place, I64(0)), I64(max(size - 1, 0)))


def _same(code: Code, node: Node, index: Index) -> Value:
    """A copy, possibly in another dtype or layout."""
    return code.argument(node.arguments[0], index, kind_of_result(code, node))


def _bits(code: Code, node: Node, index: Index) -> Value:
    """The bits of an element, read as another dtype of the same width, 32 or 64."""
    view, kind, b = node.arguments[0], kind_of_result(code, node), code.b
    assert isinstance(view, View)
    own = code.buffers[view.buffer].dtype
    value, word = code.argument(view, index, kind_of(own)), I64 if own.endswith("64") else I32
    bits = b.bitcast(value, word) if is_real(kind_of(own)) else b.trunc(value, word)
    return b.bitcast(bits, F64 if word is I64 else F32) if is_real(kind) else b.sext(bits, I64)


def _source(code: Code, node: Node, index: Index) -> Value:
    """The source of `copy`, which replaces all elements of a tensor."""
    return code.argument(node.arguments[1], index, kind_of_result(code, node))


def _padded(code: Code, node: Node, index: Index) -> Value:
    """A tensor padded with a constant: (before, after) for each axis from the last one; negative sizes crop."""
    source, sizes = node.arguments[:2]
    assert isinstance(source, View)
    assert isinstance(sizes, tuple)
    b, inside, place = code.b, code.truth(value=True), list(index)
    for n, before in enumerate(sizes[::2]):
        axis = len(index) - 1 - n
        assert isinstance(before, int)
        at = b.sub(index[axis], I64(before))
        inside = b.and_(inside, b.icmp_unsigned("<", at, I64(source.shape[axis])))
        place[axis] = code.e.minimum(code.e.maximum(at, I64(0)), I64(source.shape[axis] - 1))
    kind = kind_of_result(code, node)
    around = code.argument(node.argument("value") or 0, (), kind)
    return b.select(inside, code.argument(source, tuple(place), kind), around)


def _arange(code: Code, node: Node, index: Index) -> Value:
    start, step = (node.argument(name) for name in ("start", "step"))
    kind = kind_of_result(code, node)
    first, by = start or 0, 1 if step is None else step
    if isinstance(first, int) and isinstance(by, int):
        return code.cast(code.b.add(code.b.mul(index[0], I64(by)), I64(first)), "int", kind)
    at = code.cast(index[0], "int", "double")
    found = code.b.fadd(code.b.fmul(at, code.argument(by, (), "double")), code.argument(first, (), "double"))
    return code.cast(found, "double", kind)


def _full(code: Code, node: Node, index: Index) -> Value:
    name = "s" if node.short == "scalar_tensor" else "fill_value"
    return code.argument(node.argument(name), index, kind_of_result(code, node))


def _empty(code: Code, node: Node, index: Index) -> Value:
    return code.argument(0, index, kind_of_result(code, node))


def _cat(code: Code, node: Node, index: Index) -> Value:
    """A concatenation: the element is in the part that contains its index on the axis."""
    parts, axis, kind, b = node.arguments[0], node.argument("dim") or 0, kind_of_result(code, node), code.b
    assert isinstance(parts, tuple)
    assert isinstance(axis, int)
    axis %= len(index)
    begin, found = 0, None
    for part in parts:
        assert isinstance(part, View)
        if not part.shape[axis] or len(part.shape) != len(index):
            continue
        own = b.sub(index[axis], I64(begin))
        inside = code.e.minimum(code.e.maximum(own, I64(0)), I64(part.shape[axis] - 1))
        value = code.argument(part, (*index[:axis], inside, *index[axis + 1 :]), kind)
        found = value if found is None else b.select(b.icmp_signed(">=", own, I64(0)), value, found)
        begin += part.shape[axis]
    return found


def _rows(code: Code, node: Node, index: Index) -> Value:
    """A gather of rows: `index.Tensor`, where -1 is the last row, and `index_select`."""
    source = node.arguments[0]
    assert isinstance(source, View)
    listed = listed_of(node)
    first, inner = spread_of(listed)
    rest = (*index[:first], *index[first + len(inner) :])
    own = index[first : first + len(inner)]
    place = iter(rest)
    wanted = tuple(
        next(place) if view is None else wrapped(code, code.argument(view, own, "int"), size)
        for view, size in zip(listed, source.shape, strict=True)
    )
    return code.cast(code.at(source, wanted), kind_of(code.buffers[source.buffer].dtype), kind_of_result(code, node))


def listed_of(node: Node) -> tuple[View | None, ...]:
    """For each axis of a gather or an indexed write, the tensor of its indices; None if the axis is not indexed."""
    source = node.arguments[0]
    assert isinstance(source, View)
    axes = len(source.shape)
    if node.short == "index_select":
        axis, numbers = node.argument("dim"), node.argument("index")
        assert isinstance(axis, int)
        found: Sequence[Argument] = [numbers if n == axis % axes else None for n in range(axes)]
    else:
        listed = node.argument("indices")
        assert isinstance(listed, tuple)
        found = listed + (None,) * (axes - len(listed))
    return tuple(each if isinstance(each, View) else None for each in found)


def spread_of(listed: Sequence[View | None]) -> tuple[int, tuple[int, ...]]:
    """The first axis and the sizes of the indices in the result of a gather.

    If the indexed axes are not adjacent, those axes come first, as in numpy.
    """
    axes = [axis for axis, view in enumerate(listed) if view is not None]
    shapes = [view.shape for view in listed if view is not None]
    length = max(map(len, shapes))
    padded = [(1,) * (length - len(shape)) + shape for shape in shapes]
    inner = tuple(next((size for size in sizes if size != 1), 1) for sizes in zip(*padded, strict=True))
    together = axes == list(range(axes[0], axes[0] + len(axes)))
    return axes[0] if together else 0, inner


def _gather(code: Code, node: Node, index: Index) -> Value:
    source, axis, numbers = node.arguments[:3]
    assert isinstance(source, View)
    assert isinstance(axis, int)
    if not source.shape:
        return _same(code, node, ())
    axis %= len(source.shape)
    place = wrapped(code, code.argument(numbers, index, "int"), source.shape[axis])
    value = code.at(source, (*index[:axis], place, *index[axis + 1 :]))
    return code.cast(value, kind_of(code.buffers[source.buffer].dtype), kind_of_result(code, node))


def _flip(code: Code, node: Node, index: Index) -> Value:
    source, axes = node.arguments[:2]
    assert isinstance(source, View)
    assert isinstance(axes, tuple)
    flipped = {axis % len(source.shape) for axis in axes if isinstance(axis, int)}
    place = tuple(
        code.b.sub(I64(size - 1), at) if axis in flipped else at
        for axis, (at, size) in enumerate(zip(index, source.shape, strict=True))
    )
    return code.argument(source, place, kind_of_result(code, node))


def _is_nan(code: Code, node: Node, index: Index) -> Value:
    view = node.arguments[0]
    assert isinstance(view, View)
    kind = kind_of(code.buffers[view.buffer].dtype)
    if not is_real(kind):
        return code.truth(value=False)
    value = code.argument(view, index, kind)
    return code.b.fcmp_unordered("uno", value, value)


PLACES: Mapping[str, Formula] = {
    **dict.fromkeys(("to", "clone", "_to_copy"), _same),
    **dict.fromkeys(("index", "index_select"), _rows),
    **dict.fromkeys(("full", "full_like", "scalar_tensor"), _full),
    **dict.fromkeys(("empty", "empty_like", "new_empty"), _empty),
    **{"arange": _arange, "cat": _cat, "gather": _gather, "flip": _flip, "isnan": _is_nan},
    **{"copy": _source, "constant_pad_nd": _padded, "view": _bits},
}
