"""The pass fuse-fp8."""

from __future__ import annotations

from dataclasses import dataclass

from bringup.compile.schedule.graph.merging import by_rows, merge_pairs, only_reader
from bringup.compile.schedule.graph.op_graph import Group, OpGraph
from bringup.compile.schedule.graph.roles import NORMS, Role, products, roles_of


@dataclass(frozen=True)
class FuseFp8:
    """Fuses rounding to float8 into the operation that computes the rows: a norm, the activation of a gated MLP, or the
    epilogue of a float8 product, if at most `widest` columns share a scale.

    The rows of a norm are also stored as floats for other readers, such as a router.
    """

    name = "fuse-fp8"
    widest: int = 128

    def __call__(self, graph: OpGraph) -> OpGraph:
        return merge_pairs(graph, self._joins)

    def _joins(self, graph: OpGraph, producer: Group, consumer: Group) -> bool:
        if roles_of(consumer) != {Role.ROUND} or not by_rows(graph, producer, consumer):
            return False
        roles = roles_of(producer)
        if producer.nodes[0].short in NORMS:
            return roles <= {Role.ROW, Role.ELEMENT, Role.ROUND}
        if roles != {Role.ELEMENT} and not self._takes_blocks(producer, consumer):
            return False
        return only_reader(graph, producer, consumer)

    def _takes_blocks(self, producer: Group, consumer: Group) -> bool:
        """Whether a tile of the product contains all columns that share a scale."""
        blocks = [node.argument("columns") for node in consumer.nodes if node.argument("scale") is None]
        fits = all(isinstance(each, int) and each <= self.widest and each & (each - 1) == 0 for each in blocks)
        fits = fits and len(blocks) == len(consumer.nodes)
        fp8 = all(node.short in ("fp8_linear", "fp8_experts") for node in products(producer))
        return fits and fp8 and roles_of(producer) <= {Role.PRODUCT, Role.ELEMENT}
