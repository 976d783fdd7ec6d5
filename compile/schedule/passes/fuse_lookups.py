"""The pass fuse-lookups."""

from __future__ import annotations

from dataclasses import dataclass

from bringup.compile.schedule.graph.merging import can_merge, merged
from bringup.compile.schedule.graph.op_graph import OpGraph
from bringup.compile.schedule.graph.roles import Role, roles_of


@dataclass(frozen=True)
class FuseLookups:
    """Fuses independent look-ups of rows into one launch: embeddings and the tables of RoPE."""

    name = "fuse-lookups"

    def __call__(self, graph: OpGraph) -> OpGraph:
        while (pair := _pair(graph)) is not None:
            graph = merged(graph, *pair)
        return graph


def _pair(graph: OpGraph) -> tuple[int, int] | None:
    cheap = {Role.ELEMENT, Role.GATHER}
    lookups = [n for n, group in enumerate(graph.groups) if Role.GATHER in roles_of(group) <= cheap]
    for at, first in enumerate(lookups):
        for second in lookups[at + 1 :]:
            apart = not graph.groups[first].outputs & graph.groups[second].inputs
            if apart and can_merge(graph, first, second):
                return first, second
    return None
