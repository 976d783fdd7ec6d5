"""The pass share-fp8."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from bringup.compile.schedule.graph.op_graph import Argument, Group, Node, OpGraph, View
from bringup.compile.schedule.graph.roles import Role, role_of


@dataclass(frozen=True)
class ShareFp8:
    """Rounds rows once that several products read as float8."""

    name = "share-fp8"

    def __call__(self, graph: OpGraph) -> OpGraph:
        first: dict[tuple[Argument, ...], tuple[str, ...]] = {}
        same: dict[str, str] = {}
        groups: list[Group] = []
        for group in graph.groups:
            left: list[Node] = []
            for node in group.nodes:
                own = replace(node, arguments=tuple(_renamed(each, same) for each in node.arguments))
                left += [] if _is_known(own, first, same) else [own]
            groups += [Group(tuple(left))] if left else []
        buffers = {name: buffer for name, buffer in graph.buffers.items() if name not in same}
        return replace(graph, buffers=buffers, groups=tuple(groups)) if same else graph


def _is_known(node: Node, first: dict[tuple[Argument, ...], tuple[str, ...]], same: dict[str, str]) -> bool:
    """Whether an earlier node rounds the same rows; `same` then maps this node's results to the earlier ones."""
    if role_of(node) is not Role.ROUND:
        return False
    outputs = first.setdefault(node.arguments, node.outputs)
    if outputs != node.outputs:
        same.update(zip(node.outputs, outputs, strict=True))
    return outputs != node.outputs


def _renamed(value: Argument, same: Mapping[str, str]) -> Argument:
    if isinstance(value, View):
        return replace(value, buffer=same.get(value.buffer, value.buffer))
    return tuple(_renamed(item, same) for item in value) if isinstance(value, tuple) else value
