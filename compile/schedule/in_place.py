"""The results of a launch that can be written in place over its inputs."""

from __future__ import annotations

from collections.abc import Iterator

from bringup.compile.schedule.graph.op_graph import Group, Node, OpGraph, whole
from bringup.compile.schedule.graph.roles import Role, role_of


def in_place(graph: OpGraph, group: Group) -> Iterator[tuple[str, str]]:
    """Pairs (result, buffer that it can overwrite): each element of both is accessed by one program, which reads first.

    That holds for an element-wise operation, such as a residual sum, whose operand has the shape and dtype of its
    result and is read only at the position of the result. No other operation of the group may read the operand or the
    result, because kernels recompute intermediate results wherever they are used.
    """
    taken: set[str] = set()
    for node in reversed(group.nodes):
        for output in node.outputs if role_of(node) is Role.ELEMENT and not _read(group, node) else ():
            buffer = graph.buffers[output]
            for view in node.views:
                source = graph.buffers[view.buffer]
                alike = (source.shape, source.dtype) == (buffer.shape, buffer.dtype)
                planned = output in graph.planned and source.kind in ("temporary", "value")
                own = all(each == whole(source) for each in node.views if each.buffer == view.buffer)
                readers = sum(view.buffer in each.reads | set(each.updates) for each in group.nodes)
                if alike and planned and own and readers == 1 and view.buffer not in group.outputs | taken:
                    taken.add(view.buffer)
                    yield output, view.buffer
                    break


def _read(group: Group, node: Node) -> bool:
    """Whether the group itself reads a result of the node."""
    return any(each.reads & set(node.outputs) for each in group.nodes)
