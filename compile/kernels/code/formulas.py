"""The Triton expressions of operations, by the short names of the operations."""

from __future__ import annotations

from collections.abc import Mapping

from bringup.compile.kernels.code.index import At, Index
from bringup.compile.kernels.code.own_formulas import OWN_FORMULAS
from bringup.compile.kernels.code.row_formulas import ROW_FORMULAS
from bringup.compile.kernels.code.writer import Code, Formula, NotTaken, Value, kind_of
from bringup.compile.schedule.graph.op_graph import Argument, Node, View

_ONE = {  # of float32
    "neg": "-{0}",
    "sigmoid": "tl.sigmoid({0})",
    "tanh": "tanh({0})",
    "exp": "tl.exp({0})",
    "rsqrt": "tl.rsqrt({0})",
    "sqrt": "tl.sqrt({0})",
    "cos": "tl.cos({0})",
    "sin": "tl.sin({0})",
    "log": "tl.log({0})",
    "log1p": "log1p({0})",
    "abs": "tl.abs({0})",
    "silu": "silu({0})",
    "relu": "maximum({0}, 0.0)",
    "gelu": "gelu({0})",
    "gelu_tanh": "gelu_tanh({0})",
}
_TWO = {
    "mul": "{0} * {1}",
    "div": "quotient({0}, {1})",
    "maximum": "maximum({0}, {1})",
    "minimum": "minimum({0}, {1})",
    "remainder": "remainder({0}, {1})",
}
_COMPARED = {"gt": ">", "ge": ">=", "lt": "<", "le": "<=", "eq": "==", "ne": "!="}
_BITS = {"bitwise_and": "&", "bitwise_or": "|", "logical_and": "&", "logical_or": "|"}


def _kind(code: Code, node: Node) -> str:
    return kind_of(code.graph.buffers[node.outputs[0]].dtype)


def _widest(code: Code, *values: Argument) -> str:
    """The kind in which operands are compared."""
    kinds = {
        kind_of(code.graph.buffers[value.buffer].dtype) if isinstance(value, View) else _kind_of_number(value)
        for value in values
    }
    return next(kind for kind in ("float", "int", "bool") if kind in kinds)


def _kind_of_number(value: Argument) -> str:
    return "bool" if isinstance(value, bool) else "float" if isinstance(value, float) else "int"


def _one(code: Code, node: Node, name: str, index: Index) -> Value:
    kind = _kind(code, node)
    if kind != "float" and node.short not in ("neg", "abs", "relu"):
        raise NotTaken
    text = _ONE[node.short].format(code.argument(node.arguments[0], index, kind))
    return code.given(text, code.graph.buffers[name], index)


def _two(code: Code, node: Node, name: str, index: Index) -> Value:
    kind = _kind(code, node)
    if node.argument("rounding_mode") is not None:
        raise NotTaken
    texts = [code.argument(value, index, kind) for value in node.arguments[:2]]
    return code.given(_TWO[node.short].format(*texts), code.graph.buffers[name], index)


def _sum(code: Code, node: Node, name: str, index: Index) -> Value:
    kind = _kind(code, node)
    one, other = (code.argument(value, index, kind) for value in node.arguments[:2])
    alpha = node.argument("alpha")
    if alpha not in (None, 1):
        other = f"{other} * {code.argument(alpha, index, kind)}"
    return code.given(f"{one} {'+' if node.short == 'add' else '-'} {other}", code.graph.buffers[name], index)


def _compared(code: Code, node: Node, name: str, index: Index) -> Value:
    kind = _widest(code, *node.arguments[:2])
    one, other = (code.argument(value, index, kind) for value in node.arguments[:2])
    return code.given(f"{one} {_COMPARED[node.short]} {other}", code.graph.buffers[name], index)


def _bits(code: Code, node: Node, name: str, index: Index) -> Value:
    kind = _kind(code, node)
    one, other = (code.argument(value, index, kind) for value in node.arguments[:2])
    return code.given(f"{one} {_BITS[node.short]} {other}", code.graph.buffers[name], index)


def _not(code: Code, node: Node, name: str, index: Index) -> Value:
    kind = _kind(code, node)
    value = code.argument(node.arguments[0], index, kind)
    return code.given(f"{value} == 0" if kind == "bool" else f"~{value}", code.graph.buffers[name], index)


def _clamp(code: Code, node: Node, name: str, index: Index) -> Value:
    kind = _kind(code, node)
    text = code.argument(node.arguments[0], index, kind)
    least, most = node.argument("min"), node.argument("max")
    if least is not None:
        text = f"maximum({text}, {code.argument(least, index, kind)})"
    if most is not None:
        text = f"minimum({text}, {code.argument(most, index, kind)})"
    return code.given(text, code.graph.buffers[name], index)


def _power(code: Code, node: Node, name: str, index: Index) -> Value:
    if _kind(code, node) != "float":
        raise NotTaken
    value, exponent = code.argument(node.arguments[0], index, "float"), node.arguments[1]
    texts = {
        2: f"{value} * {value}",
        0.5: f"tl.sqrt({value})",
        -0.5: f"tl.rsqrt({value})",
        3: f"{value} * {value} * {value}",
    }
    text = texts.get(exponent) if isinstance(exponent, int | float) else None
    text = text or f"power({value}, {code.argument(exponent, index, 'float')})"
    return code.given(text, code.graph.buffers[name], index)


def _where(code: Code, node: Node, name: str, index: Index) -> Value:
    kind = _kind(code, node)
    condition = code.argument(node.arguments[0], index, "bool")
    one, other = (code.argument(value, index, kind) for value in node.arguments[1:3])
    return code.given(f"tl.where({condition}, {one}, {other})", code.graph.buffers[name], index)


def _same(code: Code, node: Node, name: str, index: Index) -> Value:
    """A copy, in another dtype or order."""
    kind = _kind(code, node)
    return code.given(code.argument(node.arguments[0], index, kind), code.graph.buffers[name], index)


def _arange(code: Code, node: Node, name: str, index: Index) -> Value:
    start, step = node.argument("start") or 0, node.argument("step") or 1
    if not isinstance(start, int) or not isinstance(step, int):
        raise NotTaken
    place = index[0].moved(step, start)
    return code.given(f"({place.text}).to(tl.int64)" if place.symbol else f"tl.full([], {place.text}, tl.int64)",
                      code.graph.buffers[name], index)  # fmt: skip


def _full(code: Code, node: Node, name: str, index: Index) -> Value:
    value = node.argument("s" if node.short == "scalar_tensor" else "fill_value")
    kind = _kind(code, node)
    text = {"float": "tl.float32", "int": "tl.int64", "bool": "tl.int1"}[kind]
    return code.given(f"tl.full([], {code.argument(value, index, kind)}, {text})", code.graph.buffers[name], index)


def _cat(code: Code, node: Node, name: str, index: Index) -> Value:
    """Concatenation: the element of one of several tensors, selected by the index on an axis."""
    parts, axis, kind = node.arguments[0], node.argument("dim") or 0, _kind(code, node)
    if not isinstance(parts, tuple) or not isinstance(axis, int):
        raise NotTaken
    axis %= len(index)
    place = index[axis]
    begin, text = 0, ""
    for part in parts:
        if not isinstance(part, View):
            raise NotTaken
        size = part.shape[axis]
        if not place.symbol:
            if begin <= place.offset < begin + size:
                own = (*index[:axis], At("", 1, place.offset - begin), *index[axis + 1 :])
                return code.given(code.argument(part, own, kind), code.graph.buffers[name], index)
        else:
            inside = code.variable(f"minimum(maximum({place.text} - {begin}, 0), {size - 1})", index)
            own = (*index[:axis], At(inside), *index[axis + 1 :])
            value = code.cast(code.at(part, own), kind)
            text = f"tl.where({place.text} >= {begin}, {value}, {text})" if text else value
        begin += size
    return code.given(text, code.graph.buffers[name], index)


def _rows(code: Code, node: Node, name: str, index: Index) -> Value:
    """Rows selected by an index: `index.Tensor` with one index tensor, in which -1 is the last row; `index_select`."""
    source = node.arguments[0]
    if not isinstance(source, View):
        raise NotTaken
    if node.short == "index_select":
        axis, numbers = node.argument("dim"), node.argument("index")
    else:
        listed = node.argument("indices")
        if not isinstance(listed, tuple):
            raise NotTaken
        given = [(n, each) for n, each in enumerate(listed) if each is not None]
        if len(given) != 1:
            raise NotTaken
        axis, numbers = given[0]
    if not isinstance(axis, int) or not isinstance(numbers, View):
        raise NotTaken
    axis %= len(source.shape)
    length = len(numbers.shape)
    value = code.at(numbers, index[axis : axis + length])
    if value.kind != "int":
        raise NotTaken
    place = value.text
    if node.short == "index":
        text = f"tl.where({place} < 0, {place} + {source.shape[axis]}, {place})"
        place = code.variable(text, (At(place), *index[axis : axis + length]))
    own = (*index[:axis], At(place), *index[axis + length :])
    return code.given(code.cast(code.at(source, own), _kind(code, node)), code.graph.buffers[name], index)


FORMULAS: Mapping[str, Formula] = {
    **dict.fromkeys(_ONE, _one),
    **dict.fromkeys(_TWO, _two),
    **dict.fromkeys(_COMPARED, _compared),
    **dict.fromkeys(_BITS, _bits),
    "add": _sum,
    "sub": _sum,
    "bitwise_not": _not,
    "logical_not": _not,
    "clamp": _clamp,
    "pow": _power,
    "where": _where,
    "to": _same,
    "clone": _same,
    "_to_copy": _same,
    "arange": _arange,
    "full": _full,
    "scalar_tensor": _full,
    "cat": _cat,
    "index": _rows,
    "index_select": _rows,
    **OWN_FORMULAS,
    **ROW_FORMULAS,
}
