"""Removes operations whose results are not read."""

from __future__ import annotations

from bringup.compile.schedule.graph.op_graph import Group, OpGraph


def without_unread(graph: OpGraph) -> OpGraph:
    """The graph without nodes that change nothing and whose results are not read."""
    read, needed = set(graph.given), list[Group]()
    for group in reversed(graph.groups):
        if group.updates or group.outputs & read:
            needed.append(group)
            read |= group.inputs
    groups = tuple(reversed(needed))
    used = {name for group in groups for name in group.inputs | group.outputs} | set(graph.given)
    used_buffers = {
        name: buffer for name, buffer in graph.buffers.items() if buffer.kind != "temporary" or name in used
    }
    return OpGraph(graph.name, used_buffers, groups, graph.results)
