"""The pass fuse-experts."""

from __future__ import annotations

from dataclasses import dataclass

from bringup.compile.schedule.graph.merging import merge_pairs, only_reader
from bringup.compile.schedule.graph.op_graph import Group, OpGraph
from bringup.compile.schedule.graph.roles import Role, products, roles_of


@dataclass(frozen=True)
class FuseExperts:
    """Fuses the gather of tokens' rows by expert into the experts' products, and element-wise operations into the sum.

    The copies of rows by expert are not stored, and terms that are added to the sum are added in the same launch.
    """

    name = "fuse-experts"

    def __call__(self, graph: OpGraph) -> OpGraph:
        return merge_pairs(graph, _joins)


def _joins(graph: OpGraph, producer: Group, consumer: Group) -> bool:
    names = [node.short for node in producer.nodes]
    if names == ["to_blocks"]:
        return bool(products(consumer)) and only_reader(graph, producer, consumer)
    if names[0] == "from_blocks":
        return roles_of(consumer) == {Role.ELEMENT} and only_reader(graph, producer, consumer)
    return False
