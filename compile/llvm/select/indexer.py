"""Groups of a single operation that selects the keys of attention: `cached_rows`, and those of `ops.topk_keys`."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from bringup.compile.kernels.call import Operand
from bringup.compile.kernels.select.attention_calls import step_of
from bringup.compile.kernels.select.tensors import argument_of, result_of
from bringup.compile.llvm.ir.machine import Machine
from bringup.compile.llvm.select.call import Call, call, call_of_single
from bringup.compile.llvm.select.sizes import BINS, FLOATS
from bringup.compile.schedule.graph.op_graph import Group, Node, OpGraph


def indexer(graph: OpGraph, group: Group, machine: Machine) -> tuple[Call, ...] | None:
    """One call; None if the operation is not supported."""
    return call_of_single(_SELECTORS, graph, group)


def _cached_rows(graph: OpGraph, node: Node) -> Call | None:
    """Rows of a ring are not supported: no family uses them."""
    cache, step, out = argument_of(graph, node, "cache_SGK"), step_of(graph, node), result_of(graph, node)
    assert cache is not None
    if cache.dtype not in FLOATS or not cache.is_dense or node.argument("ring") is not None:
        return None
    given: list[Operand] = [cache.place, step.block_table.place, step.lengths.place, out.place, step.sequences]
    settings = {"cache": cache.dtype, "in_order": step.contiguous}
    return call("cached_rows", settings, [*given, step.block_table.shape[1], cache.shape[1] * cache.shape[2]])


def _index_scores(graph: OpGraph, node: Node) -> Call | None:
    q, k, weights = (argument_of(graph, node, name) for name in ("q_NHD", "k_BLD", "weights_NH"))
    step, out = step_of(graph, node), result_of(graph, node)
    assert q is not None
    assert k is not None
    assert weights is not None
    unit = q.strides[2] == k.strides[2] == weights.strides[1] == 1
    if not unit or not {q.dtype, k.dtype, weights.dtype} <= set(FLOATS) or out.dtype != "float32":
        return None
    settings = {"q": q.dtype, "k": k.dtype, "weights": weights.dtype, "decode": step.decode}
    given: list[Operand] = [
        *(q.place, *q.strides[:2], k.place, *k.strides[:2], weights.place, weights.strides[0]),
        *(step.positions.place, step.starts.place, out.place, q.shape[0], *k.shape[:2], *q.shape[1:]),
    ]
    return call("index_scores", settings, given)


def _top_keys(graph: OpGraph, node: Node) -> Call | None:
    scores, positions = (argument_of(graph, node, name) for name in ("scores_NL", "positions_N"))
    out, count = result_of(graph, node), node.argument("count")
    assert scores is not None
    assert positions is not None
    assert isinstance(count, int)
    if scores.dtype not in FLOATS or scores.strides[1] != 1 or not positions.is_dense:
        return None
    given: list[Operand] = [scores.place, scores.strides[0], positions.place, out.place, *scores.shape, count]
    return call("top_keys", {"scores": scores.dtype}, given, 8 * BINS)


def _selected_positions(graph: OpGraph, node: Node) -> Call | None:
    selected, positions = (argument_of(graph, node, name) for name in ("selected_NL", "positions_N"))
    out = result_of(graph, node)
    assert selected is not None
    assert positions is not None
    if not selected.is_dense or not positions.is_dense:
        return None
    given: list[Operand] = [selected.place, positions.place, out.place, *selected.shape, out.shape[1]]
    return call("selected_positions", {}, given)


def _marked_keys(graph: OpGraph, node: Node) -> Call | None:
    positions, out = argument_of(graph, node, "positions_NK"), result_of(graph, node)
    assert positions is not None
    if not positions.is_dense:
        return None
    return call("marked_keys", {}, [positions.place, out.place, *positions.shape, out.shape[1]])


_SELECTORS: Mapping[str, Callable[[OpGraph, Node], Call | None]] = {
    **{"cached_rows": _cached_rows, "index_scores": _index_scores, "top_keys": _top_keys},
    **{"selected_positions": _selected_positions, "marked_keys": _marked_keys},
}
