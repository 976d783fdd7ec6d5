# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""The terms that `fold` reduces to each result of an operation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from bringup.compile.llvm.ir.code import Code, Index, Kind, is_real, kind_of
from bringup.compile.llvm.ir.dtypes import F64, I64
from bringup.compile.llvm.ir.emitter import Value
from bringup.compile.schedule.graph.op_graph import Argument, Node, View
from bringup.spec import Shape


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """`term(index, at)`: the term at `at`, of as many axes as there are `sizes`, for the result at an index.

    `rule`: how terms are combined. `results`: the number of result buffers. A variance divides by the number of terms
    minus `correction`; `finish` computes the result from the sum.
    """

    rule: str
    kind: Kind
    sizes: Shape
    term: Callable[[Index, Index], Value]
    results: int = 1
    only_place: bool = False
    correction: float = 0.0
    finish: Callable[[Index, Value], Value] | None = None


_RULES = {"amax": "max", "amin": "min", "argmax": "max", "argmin": "min", "var_mean": "var"}


def axes_of(node: Node, rank: int) -> tuple[int, ...]:
    """The axes of a reduction; all if it names none."""
    given = node.argument("dim")
    listed = [given] if isinstance(given, int) else given if isinstance(given, tuple) else []
    named = {axis % max(rank, 1) for axis in listed if isinstance(axis, int)}
    return tuple(sorted(named)) if named else tuple(range(rank))


def _reduced(code: Code, node: Node) -> Terms:
    view = _view(node.arguments[0])
    rank = len(view.shape)
    axes = axes_of(node, rank) if rank else ()
    own, rule = kind_of(code.buffers[view.buffer].dtype), _RULES.get(node.short, node.short)
    kind: Kind = _kind_of_terms(rule, own, kind_of(code.buffers[node.outputs[0]].dtype))
    keeps = len(code.buffers[node.outputs[0]].shape) == rank

    def term(index: Index, at: Index) -> Value:
        inner, outer = iter(at), iter(index)
        place: list[Value] = []
        for axis in range(rank):
            before = next(outer) if keeps or axis not in axes else None
            place.append(next(inner) if axis in axes else before)
        return code.cast(code.at(view, tuple(place)), own, kind)

    correction = node.argument("correction")
    return Terms(
        rule=rule, kind=kind, sizes=tuple(view.shape[axis] for axis in axes), term=term, results=len(node.outputs),
        only_place=node.short.startswith("arg"),
        correction=float(correction) if isinstance(correction, int | float) else 1.0,
    )  # fmt: skip


def _kind_of_terms(rule: str, own: Kind, result: Kind) -> Kind:
    if rule in ("any", "all"):
        return "bool"
    if rule in ("max", "min"):
        return "double" if is_real(own) else "int"
    return "double" if is_real(result) else "int"


def _product(code: Code, node: Node) -> Terms:
    """`mm`, `bmm` and `dot` with any strides."""
    one, other = (_view(value) for value in node.arguments[:2])
    kind: Kind = "double" if is_real(kind_of(code.buffers[node.outputs[0]].dtype)) else "int"

    def term(index: Index, at: Index) -> Value:
        left, right = (*index[:-1], *at), (*index[:-2], *at, *index[-1:])
        x, y = (
            code.cast(code.at(v, i), kind_of(code.buffers[v.buffer].dtype), kind)
            for v, i in ((one, left), (other, right))
        )
        return code.b.fmul(x, y) if is_real(kind) else code.b.mul(x, y)

    return Terms(rule="sum", kind=kind, sizes=one.shape[-1:], term=term)


def _linear(code: Code, node: Node) -> Terms:
    """x · weightᵀ, plus a bias."""
    x, weight, bias = _view(node.arguments[0]), _view(node.arguments[1]), node.argument("bias")
    kind: Kind = "double" if is_real(kind_of(code.buffers[node.outputs[0]].dtype)) else "int"
    own: list[Kind] = [kind_of(code.buffers[view.buffer].dtype) for view in (x, weight)]

    def term(index: Index, at: Index) -> Value:
        value = code.cast(code.at(x, (*index[:-1], *at)), own[0], kind)
        by = code.cast(code.at(weight, (*index[-1:], *at)), own[1], kind)
        return code.b.fmul(value, by) if is_real(kind) else code.b.mul(value, by)

    def finish(index: Index, value: Value) -> Value:
        if not isinstance(bias, View):
            return value
        added = code.argument(bias, index[-1:], kind)
        return code.b.fadd(value, added) if is_real(kind) else code.b.add(value, added)

    return Terms(rule="sum", kind=kind, sizes=weight.shape[1:], term=term, finish=finish)


def _convolution(code: Code, node: Node) -> Terms:
    """Any number of axes, with strides, zero padding, dilation and groups; a correlation, as in torch."""
    b = code.b
    x, weight = (_view(value) for value in node.arguments[:2])
    bias, groups = node.argument("bias"), node.argument("groups")
    stride, padding, dilation = (integer_tuple(node.argument(name)) for name in ("stride", "padding", "dilation"))
    assert isinstance(groups, int)
    columns = weight.shape[0] // groups  # result channels of a group
    own: list[Kind] = [kind_of(code.buffers[view.buffer].dtype) for view in (x, weight)]

    def term(index: Index, at: Index) -> Value:
        batch, column, *places = index
        channel, *taps = at
        group = b.udiv(column, I64(columns))
        place: list[Value] = [batch, b.add(b.mul(group, I64(weight.shape[1])), channel)]
        inside = code.truth(value=True)
        for n, (here, tap) in enumerate(zip(places, taps, strict=True)):
            size = x.shape[2 + n]
            far = b.add(b.mul(here, I64(stride[n])), b.mul(tap, I64(dilation[n])))
            at_x = b.sub(far, I64(padding[n]))
            inside = b.and_(inside, b.icmp_unsigned("<", at_x, I64(size)))
            place.append(code.e.minimum(code.e.maximum(at_x, I64(0)), I64(size - 1)))
        value = code.cast(code.at(x, tuple(place)), own[0], "double")
        by = code.cast(code.at(weight, (column, *at)), own[1], "double")
        return b.select(inside, b.fmul(value, by), F64(0.0))

    def finish(index: Index, value: Value) -> Value:
        return b.fadd(value, code.argument(bias, (index[1],), "double")) if isinstance(bias, View) else value

    return Terms(rule="sum", kind="double", sizes=weight.shape[1:], term=term, finish=finish)


def integer_tuple(value: Argument) -> tuple[int, ...]:
    """A setting that is a list of integers."""
    assert isinstance(value, tuple)
    return tuple(int(each) for each in value if isinstance(each, int))


def _view(value: Argument) -> View:
    assert isinstance(value, View)
    return value


_REDUCED = ("sum", "mean", "prod", "any", "all", "amax", "amin", "max", "min", "argmax", "argmin", "var", "var_mean")
TERMS: Mapping[str, Callable[[Code, Node], Terms]] = {
    **dict.fromkeys(_REDUCED, _reduced),
    **dict.fromkeys(("mm", "bmm"), _product),
    "dot": _product,
    "linear": _linear,
    "convolution": _convolution,
}
