"""Selects the kernels for groups with a single operation of `ops.topk_keys`: the selection of keys for attention."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from bringup.compile.kernels.call import Constant, KernelCall
from bringup.compile.kernels.code.types import power_of_two
from bringup.compile.kernels.select.attention_calls import NARROW, WIDE
from bringup.compile.kernels.select.tensors import argument_of, call_of, result_of
from bringup.compile.schedule.graph.op_graph import Group, Node, OpGraph

MOST_HEADS = 128
TILE = 1024


def indexer(graph: OpGraph, group: Group, capability: str) -> tuple[KernelCall, ...] | None:
    """One call, or None for another group."""
    if len(group.nodes) != 1:
        return None
    node = group.nodes[0]
    call = _CALLS.get(node.short)
    return call(graph, node) if call else None


def _index_scores(graph: OpGraph, node: Node) -> tuple[KernelCall, ...] | None:
    found = [argument_of(graph, node, name) for name in ("q_NHD", "k_BLD", "weights_NH", "step_starts")]
    q, k, weights, starts = [tensor for tensor in found if tensor is not None]
    out = result_of(graph, node)
    (tokens, heads, channels), (sequences, keys, _) = q.shape, k.shape
    floats = {q.dtype, k.dtype, weights.dtype}
    if not floats <= {WIDE, *NARROW} or any(tensor.strides[-1] != 1 for tensor in (q, k, weights)):
        return None
    if heads > MOST_HEADS or out.dtype != WIDE:
        return None
    wide = q.dtype == WIDE or k.dtype != q.dtype
    tile = 16 if wide else 64
    constants: dict[str, Constant] = {
        **{"B": sequences, "L": keys, "H": heads, "D": channels, "KEYS": tile, "WIDE": wide},
        **{"Q_ROW": q.strides[0], "Q_HEAD": q.strides[1], "K_SEQUENCE": k.strides[0], "K_ROW": k.strides[1]},
        **{"WEIGHT_ROW": weights.strides[0], "HEADS": max(16, power_of_two(heads))},
        **{"CHANNELS": max(16, power_of_two(channels)), "ENDS": power_of_two(sequences)},
    }
    by_token = node.argument("step_decode") is True
    parameters = {"q_NHD": q, "k_BLD": k, "weights_NH": weights, "starts": None if by_token else starts, "out_NL": out}
    return (call_of("indexer.index_scores", parameters, constants, (-(-keys // tile), tokens, 1), warps=4, stages=1),)


def _top_keys(graph: OpGraph, node: Node) -> tuple[KernelCall, ...] | None:
    found = [argument_of(graph, node, name) for name in ("scores_NL", "positions_N")]
    scores, positions = [tensor for tensor in found if tensor is not None]
    count = node.argument("count")
    if scores.dtype not in (WIDE, *NARROW) or scores.strides[1] != 1 or not isinstance(count, int):
        return None
    tokens, keys = scores.shape
    constants: dict[str, Constant] = {"L": keys, "ROW": scores.strides[0], "COUNT": count, "BLOCK": TILE}
    parameters = {"scores_NL": scores, "positions_N": positions, "out_NL": result_of(graph, node)}
    return (call_of("indexer.top_keys", parameters, constants, (tokens, 1, 1), warps=4, stages=1),)


def _selected_positions(graph: OpGraph, node: Node) -> tuple[KernelCall, ...] | None:
    found = [argument_of(graph, node, name) for name in ("selected_NL", "positions_N")]
    selected, positions = [tensor for tensor in found if tensor is not None]
    out = result_of(graph, node)
    if selected.strides[1] != 1:
        return None
    tokens, keys = selected.shape
    constants: dict[str, Constant] = {"L": keys, "ROW": selected.strides[0], "COUNT": out.shape[1], "BLOCK": TILE}
    parameters = {"selected_NL": selected, "positions_N": positions, "out_NK": out}
    return (call_of("indexer.selected_positions", parameters, constants, (tokens, 1, 1), warps=4, stages=1),)


def _marked_keys(graph: OpGraph, node: Node) -> tuple[KernelCall, ...] | None:
    positions, out = argument_of(graph, node, "positions_NK"), result_of(graph, node)
    assert positions is not None
    if not positions.is_dense:
        return None
    (tokens, count), keys = positions.shape, out.shape[1]
    constants: dict[str, Constant] = {"L": keys, "K": count, "STEPS": count.bit_length(), "BLOCK": TILE}
    grid = (tokens, -(-keys // TILE), 1)
    return (
        call_of("indexer.marked_keys", {"positions_NK": positions, "out_NL": out}, constants, grid, warps=4, stages=1),
    )


_CALLS: Mapping[str, Callable[[OpGraph, Node], tuple[KernelCall, ...] | None]] = {
    **{"index_scores": _index_scores, "top_keys": _top_keys},
    **{"selected_positions": _selected_positions, "marked_keys": _marked_keys},
}
