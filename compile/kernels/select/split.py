"""Splits groups that no kernel takes into smaller ones, before memory is planned."""

from __future__ import annotations

from collections.abc import Iterator

from bringup.compile.kernels.select.registry import calls_of
from bringup.compile.schedule.graph.op_graph import Group, OpGraph
from bringup.diagnostics import fail


def split(graph: OpGraph, capability: str) -> OpGraph:
    """The function with groups that kernels take, each as long as it can be, in the same order of operations.

    Raises BU504 for an operation that no kernel takes.
    """
    at = 0
    while at < len(graph.groups):
        if calls_of(graph, graph.groups[at], capability) is None:
            graph = _smaller(graph, at, capability)
        at += 1
    return graph


def _smaller(graph: OpGraph, at: int, capability: str) -> OpGraph:
    """The function with the first operations of a group as a group of their own."""
    before, group, after = graph.groups[:at], graph.groups[at], graph.groups[at + 1 :]
    for first, rest in _cuts(group):
        cut = graph.with_groups([*before, first, rest, *after])
        if calls_of(cut, first, capability) is not None:
            return cut
    node = group.nodes[0]
    shapes = ", ".join(f"{graph.buffers[name].dtype}{list(graph.buffers[name].shape)}" for name in node.outputs)
    raise fail(
        "BU504",
        f"no kernel for {capability} takes `{node.op}` of `{graph.name}`, which gives {shapes or 'nothing'}",
        help="write it with other operations, or use another target",
    )


def _cuts(group: Group) -> Iterator[tuple[Group, Group]]:
    """A group in two, the first as long as it can be."""
    for count in range(len(group.nodes) - 1, 0, -1):
        yield Group(group.nodes[:count]), Group(group.nodes[count:])
