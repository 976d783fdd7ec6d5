# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""Merges linear layers with the same input whose weights are adjacent in one buffer.

Fused q, k and v, or gate and up, are then one product that reads the activations once.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from torch.export import ExportedProgram

_LINEAR = ("aten.linear.default", "bringup.linear.default")


class _Part(NamedTuple):
    """A linear layer whose weight, and bias if it has one, are rows `start` to `stop` of buffers."""

    node: Any
    weight: Any
    bias: Any
    start: int
    stop: int


def merge_linears(exported: ExportedProgram) -> int:
    """Changes the graph of a traced stage in place; returns the number of layers removed.

    Layers are merged if together they read all rows of their buffers, in any order. Their results become parts of one
    product.
    """
    graph = exported.graph
    gone = 0
    for parts in list(_groups(graph)):
        first = min(parts, key=lambda part: list(graph.nodes).index(part.node))
        with graph.inserting_before(first.node):
            args = (first.node.args[0], first.weight, first.bias)
            merged = graph.create_node("call_function", first.node.target, args)
        _describe(merged, first.node, parts[-1].stop)
        for part in parts:
            _replace(graph, part, merged)
        gone += len(parts) - 1
    exported.graph_module.recompile()
    return gone


def _groups(graph: Any) -> Iterator[list[_Part]]:
    """Groups of layers with one input that together read complete buffers, ordered by rows."""
    found: dict[tuple[Any, ...], list[_Part]] = {}
    for node in graph.nodes:
        if node.op == "call_function" and str(node.target) in _LINEAR and (part := _part(node)):
            found.setdefault((node.args[0], node.target, part.weight, part.bias), []).append(part)
    for (_, _, weight, bias), parts in found.items():
        parts.sort(key=lambda part: part.start)
        rows = weight.meta["val"].shape[0]
        whole = parts[0].start == 0 and parts[-1].stop == rows
        joined = all(before.stop == after.start for before, after in pairwise(parts))
        if len(parts) > 1 and whole and joined and (bias is None or bias.meta["val"].shape[0] == rows):
            yield parts


def _part(node: Any) -> _Part | None:
    _, weight, bias = (*node.args, None)[:3]
    rows = _rows(weight)
    of_bias = _rows(bias) if bias is not None else rows
    if rows is None or of_bias is None or of_bias[1:] != rows[1:]:
        return None
    return _Part(node, rows[0], None if bias is None else of_bias[0], *rows[1:])


def _rows(node: Any) -> tuple[Any, int, int] | None:
    """The buffer whose rows a node selects, and their range; None for other nodes."""
    if str(node.target) != "aten.narrow.default" or node.args[1] != 0:
        return None
    buffer, _, start, count = node.args
    return (buffer, start, start + count) if buffer.op == "placeholder" else None


def _replace(graph: Any, part: _Part, merged: Any) -> None:
    """Replaces the result of a layer by its columns of the merged result, as a contiguous tensor."""
    import torch

    axis = merged.meta["val"].dim() - 1
    with graph.inserting_after(merged):
        taken = graph.call_function(torch.ops.aten.narrow.default, (merged, axis, part.start, part.stop - part.start))
    with graph.inserting_after(taken):
        dense = graph.call_function(torch.ops.aten.contiguous.default, (taken,))
    for node in (taken, dense):
        _describe(node, part.node, part.stop - part.start)
    part.node.replace_all_uses_with(dense)
    rows = part.node.args[1:]
    graph.erase_node(part.node)
    for node in rows:
        if node is not None and not node.users:
            graph.erase_node(node)


def _describe(node: Any, like: Any, width: int) -> None:
    """Sets shape, dtype and source line of a node to those of `like`, with a last axis of size `width`."""
    value = like.meta["val"]
    node.meta = dict(like.meta) | {"val": value.new_empty((*value.shape[:-1], width))}
