# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""The element of each element-wise operation, copy and look-up, by its short name."""

from __future__ import annotations

from collections.abc import Mapping

from bringup.compile.llvm.ir.code import Code, Formula, Index, Kind, kind_of
from bringup.compile.llvm.ir.emitter import I64, Value, real
from bringup.compile.llvm.ir.functions import ONE, absolute, least, most, rsqrt, sqrt
from bringup.compile.schedule.graph.op_graph import Argument, Node, View

_COMPARED = {"gt": ">", "ge": ">=", "lt": "<", "le": "<=", "eq": "==", "ne": "!="}
_BITS = {"bitwise_and": "and_", "bitwise_or": "or_", "logical_and": "and_", "logical_or": "or_"}


def _kind(code: Code, node: Node) -> Kind:
    return kind_of(code.buffers[node.outputs[0]].dtype)


def _pair(code: Code, node: Node, index: Index, kind: Kind) -> tuple[Value, Value]:
    one, other = (code.argument(value, index, kind) for value in node.arguments[:2])
    return one, other


def _one(code: Code, node: Node, index: Index) -> Value:
    return ONE[node.short](code.e, code.argument(node.arguments[0], index, "float"))


def _negative(code: Code, node: Node, index: Index) -> Value:
    kind = _kind(code, node)
    value = code.argument(node.arguments[0], index, kind)
    return code.b.fneg(value) if kind == "float" else code.b.neg(value)


def _absolute(code: Code, node: Node, index: Index) -> Value:
    kind = _kind(code, node)
    value = code.argument(node.arguments[0], index, kind)
    return absolute(code.e, value) if kind == "float" else code.e.most(value, code.b.neg(value))


def _relu(code: Code, node: Node, index: Index) -> Value:
    value = code.argument(node.arguments[0], index, "float")
    return most(code.e, real(0.0), value)  # NaN stays NaN


def _sum(code: Code, node: Node, index: Index) -> Value:
    kind, b = _kind(code, node), code.b
    one, other = _pair(code, node, index, kind)
    alpha = node.argument("alpha")
    if alpha not in (None, 1):
        factor = code.argument(alpha, index, kind)
        other = b.fmul(other, factor) if kind == "float" else b.mul(other, factor)
    if node.short == "add":
        return b.fadd(one, other) if kind == "float" else b.add(one, other)
    return b.fsub(one, other) if kind == "float" else b.sub(one, other)


def _product(code: Code, node: Node, index: Index) -> Value:
    kind = _kind(code, node)
    one, other = _pair(code, node, index, kind)
    return code.b.fmul(one, other) if kind == "float" else code.b.mul(one, other)


def _quotient(code: Code, node: Node, index: Index) -> Value:
    return code.b.fdiv(*_pair(code, node, index, "float"))


def _remainder(code: Code, node: Node, index: Index) -> Value:
    """Of whole numbers, with the sign of the divisor."""
    b = code.b
    value, divisor = _pair(code, node, index, "int")
    rest = b.srem(value, divisor)
    is_other = b.and_(b.icmp_signed("!=", rest, I64(0)), b.icmp_signed("<", b.xor(rest, divisor), I64(0)))
    return b.select(is_other, b.add(rest, divisor), rest)


def _extreme(code: Code, node: Node, index: Index) -> Value:
    kind = _kind(code, node)
    return _bounded(code, *_pair(code, node, index, kind), kind, node.short == "maximum")


def _bounded(code: Code, value: Value, bound: Value, kind: Kind, is_maximum: bool) -> Value:
    """The larger or the smaller of two numbers; NaN where either is."""
    if kind == "float":
        found = (most if is_maximum else least)(code.e, bound, value)
        return code.b.select(code.b.fcmp_unordered("uno", bound, bound), bound, found)
    return (code.e.most if is_maximum else code.e.least)(value, bound)


def _clamp(code: Code, node: Node, index: Index) -> Value:
    kind = _kind(code, node)
    value = code.argument(node.arguments[0], index, kind)
    for name in ("min", "max"):
        if (bound := node.argument(name)) is not None:
            value = _bounded(code, value, code.argument(bound, index, kind), kind, name == "min")
    return value


def _compared(code: Code, node: Node, index: Index) -> Value:
    kinds = {_kind_of(code, value) for value in node.arguments[:2]}
    kind: Kind = "float" if "float" in kinds else "int"
    one, other = _pair(code, node, index, kind)
    sign = _COMPARED[node.short]
    if kind == "int":
        return code.b.icmp_signed(sign, one, other)
    return (code.b.fcmp_unordered if sign == "!=" else code.b.fcmp_ordered)(sign, one, other)


def _kind_of(code: Code, value: Argument) -> Kind:
    if isinstance(value, View):
        return kind_of(code.buffers[value.buffer].dtype)
    return "float" if isinstance(value, float) else "int"


def _bits(code: Code, node: Node, index: Index) -> Value:
    return getattr(code.b, _BITS[node.short])(*_pair(code, node, index, _kind(code, node)))


def _not(code: Code, node: Node, index: Index) -> Value:
    return code.b.not_(code.argument(node.arguments[0], index, _kind(code, node)))


def _power(code: Code, node: Node, index: Index) -> Value:
    value, power = code.argument(node.arguments[0], index, "float"), node.arguments[1]
    if power == 0.5:
        return sqrt(code.e, value)
    if power == -0.5:
        return rsqrt(code.e, value)
    square = code.b.fmul(value, value)
    return square if power == 2 else code.b.fmul(square, value)


def _where(code: Code, node: Node, index: Index) -> Value:
    condition = code.argument(node.arguments[0], index, "bool")
    kind = _kind(code, node)
    one, other = (code.argument(value, index, kind) for value in node.arguments[1:3])
    return code.b.select(condition, one, other)


def _same(code: Code, node: Node, index: Index) -> Value:
    """A copy, in another dtype or order."""
    return code.argument(node.arguments[0], index, _kind(code, node))


def _arange(code: Code, node: Node, index: Index) -> Value:
    start, step = node.argument("start") or 0, node.argument("step") or 1
    assert isinstance(start, int)
    assert isinstance(step, int)
    return code.cast(code.b.add(code.b.mul(index[0], I64(step)), I64(start)), "int", _kind(code, node))


def _full(code: Code, node: Node, index: Index) -> Value:
    return code.argument(node.argument("fill_value"), index, _kind(code, node))


def _cat(code: Code, node: Node, index: Index) -> Value:
    """One of several tensors, by the place on an axis."""
    parts, axis, kind, b = node.arguments[0], node.argument("dim") or 0, _kind(code, node), code.b
    assert isinstance(parts, tuple)
    assert isinstance(axis, int)
    axis %= len(index)
    begin, found = 0, None
    for part in parts:
        assert isinstance(part, View)
        own = b.sub(index[axis], I64(begin))
        inside = code.e.least(code.e.most(own, I64(0)), I64(part.shape[axis] - 1))
        value = code.argument(part, (*index[:axis], inside, *index[axis + 1 :]), kind)
        found = value if found is None else b.select(b.icmp_signed(">=", own, I64(0)), value, found)
        begin += part.shape[axis]
    return found


def _rows(code: Code, node: Node, index: Index) -> Value:
    """Rows that an index names: `index.Tensor` with one list of numbers, where -1 is the last, and `index_select`."""
    source, axis, numbers = rows_of(node)
    length = len(numbers.shape)
    place = code.at(numbers, index[axis : axis + length])
    if node.short == "index":
        below = code.b.icmp_signed("<", place, I64(0))
        place = code.b.select(below, code.b.add(place, I64(source.shape[axis])), place)
    value = code.at(source, (*index[:axis], place, *index[axis + length :]))
    return code.cast(value, kind_of(code.buffers[source.buffer].dtype), _kind(code, node))


def _total(code: Code, node: Node, index: Index) -> Value:
    """The sum along a short last axis."""
    view, kind = node.arguments[0], _kind(code, node)
    assert isinstance(view, View)
    lead, own, found = index[: len(view.shape) - 1], kind_of(code.buffers[view.buffer].dtype), None
    for n in range(view.shape[-1]):
        value = code.cast(code.at(view, (*lead, I64(n))), own, kind)
        found = value if found is None else (code.b.fadd if kind == "float" else code.b.add)(found, value)
    return found


def rows_of(node: Node) -> tuple[View, int, View]:
    """Of a look-up: what it reads, the axis, and the numbers on it."""
    source = node.arguments[0]
    if node.short == "index_select":
        axis, numbers = node.argument("dim"), node.argument("index")
    else:
        listed = node.argument("indices")
        assert isinstance(listed, tuple)
        ((axis, numbers),) = [(n, each) for n, each in enumerate(listed) if each is not None]
    assert isinstance(source, View)
    assert isinstance(numbers, View)
    assert isinstance(axis, int)
    return source, axis % len(source.shape), numbers


FORMULAS: Mapping[str, Formula] = {
    **dict.fromkeys([name for name in ONE if name != "abs"], _one),
    **dict.fromkeys(_COMPARED, _compared),
    **dict.fromkeys(_BITS, _bits),
    **dict.fromkeys(("add", "sub"), _sum),
    **dict.fromkeys(("maximum", "minimum"), _extreme),
    **dict.fromkeys(("bitwise_not", "logical_not"), _not),
    **dict.fromkeys(("to", "clone", "_to_copy"), _same),
    **dict.fromkeys(("index", "index_select"), _rows),
    **{"neg": _negative, "abs": _absolute, "relu": _relu, "mul": _product, "div": _quotient, "clamp": _clamp},
    **{"remainder": _remainder},
    **{"pow": _power, "where": _where, "arange": _arange, "full": _full, "cat": _cat, "sum": _total},
}
