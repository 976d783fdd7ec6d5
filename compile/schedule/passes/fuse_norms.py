"""The pass fuse-norms."""

from __future__ import annotations

from dataclasses import dataclass

from bringup.compile.schedule.graph.merging import merge_pairs, only_reader
from bringup.compile.schedule.graph.op_graph import Group, OpGraph
from bringup.compile.schedule.graph.roles import NORMS, Role, products, role_of


@dataclass(frozen=True)
class FuseNorms:
    """Fuses a norm into the matrix product that alone reads its result.

    Each program of the product computes the norm of its rows again, so this is only done for up to `most_rows` rows.
    """

    name = "fuse-norms"
    most_rows: int = 16

    def __call__(self, graph: OpGraph) -> OpGraph:
        return merge_pairs(graph, self._joins)

    def _joins(self, graph: OpGraph, producer: Group, consumer: Group) -> bool:
        if not all(node.short in NORMS for node in producer.nodes) or len(products(consumer)) != 1:
            return False
        first = consumer.nodes[0]
        if role_of(first) is not Role.PRODUCT or not producer.outputs & first.reads:
            return False
        (view, *_) = first.views
        rows = 1
        for size in view.shape[:-1]:
            rows *= size
        return rows <= self.most_rows and only_reader(graph, producer, consumer)
