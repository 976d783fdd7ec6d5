"""The pass fuse-elements."""

from __future__ import annotations

from dataclasses import dataclass

from bringup.compile.schedule.graph.merging import by_rows, merge_pairs, only_reader
from bringup.compile.schedule.graph.op_graph import Group, OpGraph
from bringup.compile.schedule.graph.roles import Role, roles_of


@dataclass(frozen=True)
class FuseElements:
    """Fuses consecutive element-wise operations, and look-ups of rows that only they read, into one launch.

    Examples: the embedding with its scale and learned positions; the arithmetic of a mask or of slot indices.
    """

    name = "fuse-elements"

    def __call__(self, graph: OpGraph) -> OpGraph:
        return merge_pairs(graph, _joins)


def _joins(graph: OpGraph, producer: Group, consumer: Group) -> bool:
    cheap = {Role.ELEMENT, Role.GATHER}
    return (
        roles_of(producer) <= cheap
        and roles_of(consumer) <= cheap
        and Role.ELEMENT in roles_of(consumer)
        and only_reader(graph, producer, consumer)
        and by_rows(graph, producer, consumer)
    )
