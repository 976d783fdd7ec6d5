"""Groups of a single norm, softmax, rope, or write into a cache."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from bringup.compile.kernels.call import Operand
from bringup.compile.kernels.select.tensors import Tensor, argument_of, result_of
from bringup.compile.llvm.ir.machine import Machine
from bringup.compile.llvm.select.call import Call, call, call_of_single
from bringup.compile.llvm.select.sizes import FLOATS
from bringup.compile.schedule.graph.op_graph import Group, Node, OpGraph


def rows(graph: OpGraph, group: Group, machine: Machine) -> tuple[Call, ...] | None:
    """One call; None if the operation is not supported."""
    return call_of_single(_SELECTORS, graph, group)


def _norm(graph: OpGraph, node: Node) -> Call | None:
    x, weight, bias = (argument_of(graph, node, name) for name in ("x", "weight", "bias"))
    out, eps, offset = result_of(graph, node), node.argument("eps"), node.argument("offset") or 0.0
    assert x is not None
    assert weight is not None
    assert isinstance(eps, float)
    assert isinstance(offset, float | int)
    places = _two_axes(x)
    known = {each.dtype for each in (x, weight, out)} <= set(FLOATS)
    if places is None or not known or not weight.is_dense or x.strides[-1] != 1:
        return None
    given: list[Operand] = [x.place, *places, out.place, x.shape[-1], weight.place, eps]
    settings = {"x": x.dtype, "weight": weight.dtype, "out": out.dtype}
    if node.short == "rms_norm":
        own = {"offset": bool(offset), "round_last": bool(node.argument("round_last"))}
        return call("rms_norm", settings | own, [*given, float(offset)])
    if bias is None or bias.dtype != weight.dtype or not bias.is_dense:
        return None
    return call("layer_norm", settings, [*given, bias.place])


def _softmax(graph: OpGraph, node: Node) -> Call | None:
    x, out, axis = argument_of(graph, node, "self"), result_of(graph, node), node.argument("dim")
    assert x is not None
    places = _two_axes(x)
    last = axis in (-1, len(x.shape) - 1)
    if places is None or not last or not {x.dtype, out.dtype} <= set(FLOATS) or x.strides[-1] != 1:
        return None
    return call("softmax", {"x": x.dtype, "out": out.dtype}, [x.place, *places, out.place, x.shape[-1]])


def _two_axes(x: Tensor) -> tuple[int, int, int, int] | None:
    """(count, stride) of an outer and of an inner axis, equivalent to all axes but the last; None if impossible."""
    axes: list[tuple[int, int]] = []
    for size, stride in zip(x.shape[:-1], x.strides[:-1], strict=True):
        if size == 1:
            continue
        if axes and axes[-1][1] == size * stride:
            axes[-1] = (axes[-1][0] * size, stride)
        else:
            axes.append((size, stride))
    if len(axes) > 2:
        return None
    outer, inner = [(1, 0), (1, 0), *axes][-2:]
    return *outer, *inner


def _rope(graph: OpGraph, node: Node) -> Call | None:
    x, cos, sin = (argument_of(graph, node, name) for name in ("x_NHK", "cos_NC", "sin_NC"))
    out = result_of(graph, node)
    assert x is not None
    assert cos is not None
    assert sin is not None
    tables = {cos.dtype, sin.dtype}
    known = {x.dtype, *tables} <= set(FLOATS) and len(tables) == 1 and x.dtype == out.dtype
    if not known or any(each.strides[-1] != 1 for each in (x, cos, sin)):
        return None
    settings = {"x": x.dtype, "table": cos.dtype, "interleaved": bool(node.argument("interleaved"))}
    given: list[Operand] = [x.place, *x.strides[:2], cos.place, cos.strides[0], sin.place, sin.strides[0], out.place]
    return call("rope", settings, [*given, *x.shape, cos.shape[1]])


def _write_cache(graph: OpGraph, node: Node) -> Call | None:
    cache, slots, own = (argument_of(graph, node, name) for name in ("cache_SGK", "slots_N", "rows_NGK"))
    assert cache is not None
    assert slots is not None
    assert own is not None
    known = {cache.dtype, own.dtype} <= set(FLOATS) and slots.dtype == "int64"
    if not known or not cache.is_dense or not slots.is_dense or own.strides[2] != 1:
        return None
    settings = {"cache": cache.dtype, "rows": own.dtype}
    return call("write_cache", settings, [cache.place, slots.place, own.place, *own.strides[:2], *own.shape])


_SELECTORS: Mapping[str, Callable[[OpGraph, Node], Call | None]] = {
    **{"rms_norm": _norm, "layer_norm": _norm, "softmax": _softmax, "rope": _rope, "write_cache": _write_cache},
}
