"""Splits groups without a kernel into smaller ones, before memory is planned."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from bringup.compile.schedule.graph.op_graph import Group, Node, OpGraph
from bringup.diagnostics import BringupError, fail

Taken = Callable[[OpGraph, Group], bool]


def split_groups(graph: OpGraph, is_taken: Taken, where: str) -> OpGraph:
    """The function with groups that kernels support, each as long as possible, in the same order of operations.

    `where` is the target's name in errors. Raises BU504 for an operation that no kernel supports.
    """
    at = 0
    while at < len(graph.groups):
        if not is_taken(graph, graph.groups[at]):
            graph = _smaller(graph, at, is_taken, where)
        at += 1
    return graph


def _smaller(graph: OpGraph, at: int, is_taken: Taken, where: str) -> OpGraph:
    """The function with a group split after its first operations, as many as kernels support."""
    before, group, after = graph.groups[:at], graph.groups[at], graph.groups[at + 1 :]
    for first, rest in _cuts(group):
        cut = graph.with_groups([*before, first, rest, *after])
        if is_taken(cut, first):
            return cut
    raise no_kernel(graph, group.nodes[0], where, help="write it with other operations, or use another target")


def no_kernel(graph: OpGraph, node: Node, where: str, help: str) -> BringupError:
    """BU504 for an operation that no kernel supports."""
    shapes = ", ".join(f"{graph.buffers[name].dtype}{list(graph.buffers[name].shape)}" for name in node.outputs)
    results = f"with the result {shapes}" if shapes else "without a result"
    message = f"no kernel for {where} supports `{node.op}` of `{graph.name}`, {results}"
    return fail("BU504", message, help=help, where=node.site)


def _cuts(group: Group) -> Iterator[tuple[Group, Group]]:
    """The ways to split a group in two, those with the longest first part first."""
    for count in range(len(group.nodes) - 1, 0, -1):
        yield Group(group.nodes[:count]), Group(group.nodes[count:])
