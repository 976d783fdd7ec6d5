"""Groups of a single mixture-of-experts operation other than products: routing, and the rows of each expert."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from bringup.compile.kernels.call import Operand
from bringup.compile.kernels.code.types import rows_of
from bringup.compile.kernels.select.tensors import argument_of, result_of, tensor_of
from bringup.compile.llvm.ir.machine import Machine
from bringup.compile.llvm.select.call import Call, call, call_of_single
from bringup.compile.llvm.select.sizes import FLOATS
from bringup.compile.schedule.graph.op_graph import Group, Node, OpGraph, View, whole


def experts(graph: OpGraph, group: Group, machine: Machine) -> tuple[Call, ...] | None:
    """One call; None if the operation is not supported."""
    return call_of_single(_SELECTORS, graph, group)


def _top_experts(graph: OpGraph, node: Node) -> Call | None:
    scores, by, count = argument_of(graph, node, "scores_NE"), argument_of(graph, node, "by_NE"), node.argument("count")
    assert scores is not None
    assert isinstance(count, int)
    other = scores if by is None else by
    if not {scores.dtype, other.dtype} <= set(FLOATS) or scores.strides[1] != 1 or other.strides[1] != 1:
        return None
    chosen, weights = (tensor_of(graph, whole(graph.buffers[name])) for name in node.outputs)
    given: list[Operand] = [scores.place, scores.strides[0], other.place, other.strides[0], chosen.place, weights.place]
    settings = {"scores": scores.dtype, "by": other.dtype}
    return call("top_experts", settings, [*given, *scores.shape, count])


def _keep_best_groups(graph: OpGraph, node: Node) -> Call | None:
    scores, out = argument_of(graph, node, "scores_NE"), result_of(graph, node)
    groups, remaining, best = (_whole(node, name) for name in ("groups", "topk_groups", "best"))
    assert scores is not None
    if scores.dtype not in FLOATS or scores.strides[1] != 1:
        return None
    given: list[Operand] = [scores.place, scores.strides[0], out.place, *scores.shape, groups, remaining, best]
    return call("keep_best_groups", {"scores": scores.dtype}, given, 4 * groups)


def _rows_of_experts(graph: OpGraph, node: Node) -> Call | None:
    chosen, number, height = argument_of(graph, node, "selected_NK"), _whole(node, "experts"), _whole(node, "R")
    assert chosen is not None
    if not chosen.is_dense:
        return None
    expert, row = (tensor_of(graph, whole(graph.buffers[name])) for name in node.outputs)
    choices = chosen.shape[0] * chosen.shape[1]
    given: list[Operand] = [chosen.place, expert.place, row.place, choices, number, height, expert.shape[0]]
    return call("rows_of_experts", {"single": height == 1}, given, 8 * number)


def _to_blocks(graph: OpGraph, node: Node) -> Call | None:
    x, row, out = argument_of(graph, node, "x_Nm"), argument_of(graph, node, "blocks_row_NK"), result_of(graph, node)
    view = node.argument("x_Nm")
    assert x is not None
    assert row is not None
    assert isinstance(view, View)
    rows = rows_of(view)
    if x.dtype not in FLOATS or x.strides[-1] != 1 or rows is None or not row.is_dense:
        return None
    (tokens, each), (blocks, height, channels) = row.shape, out.shape
    given: list[Operand] = [x.place, rows[1], row.place, out.place, tokens * each, each, channels, blocks * height]
    return call("to_blocks", {"x": x.dtype, "single": height == 1}, given)


def _from_blocks(graph: OpGraph, node: Node) -> Call | None:
    names = ("y_BRm", "weights_NK", "blocks_row_NK")
    y, weights, row = (argument_of(graph, node, name) for name in names)
    out = result_of(graph, node)
    assert y is not None
    assert weights is not None
    assert row is not None
    known = {y.dtype, weights.dtype} <= set(FLOATS) and out.dtype == y.dtype
    if not known or not y.is_dense or not row.is_dense or weights.strides[1] != 1:
        return None
    settings = {"y": y.dtype, "weights": weights.dtype, "each": weights.shape[1]}
    given: list[Operand] = [y.place, weights.place, weights.strides[0], row.place, out.place, *out.shape]
    return call("from_blocks", settings, given)


def _whole(node: Node, name: str) -> int:
    value = node.argument(name)
    assert isinstance(value, int)
    return value


_SELECTORS: Mapping[str, Callable[[OpGraph, Node], Call | None]] = {
    **{"top_experts": _top_experts, "keep_best_groups": _keep_best_groups, "rows_of_experts": _rows_of_experts},
    **{"to_blocks": _to_blocks, "from_blocks": _from_blocks},
}
