"""The pass fuse-epilogues."""

from __future__ import annotations

from dataclasses import dataclass

from bringup.compile.schedule.graph.merging import by_rows, merge_pairs, only_reader
from bringup.compile.schedule.graph.op_graph import Group, OpGraph
from bringup.compile.schedule.graph.roles import Role, products, roles_of


@dataclass(frozen=True)
class FuseEpilogues:
    """Fuses element-wise operations into the matrix product whose result they read, before it is stored.

    Examples: a bias, an activation, the product with the other half of a gated MLP, the sum with the residual. An
    operation on two products (gate and up of experts) is fused with both, if they read the same activations.
    """

    name = "fuse-epilogues"

    def __call__(self, graph: OpGraph) -> OpGraph:
        return merge_pairs(graph, _joins)


def _joins(graph: OpGraph, producer: Group, consumer: Group) -> bool:
    if not products(producer) or not only_reader(graph, producer, consumer):
        return False
    if roles_of(consumer) == {Role.ELEMENT}:
        return _same_rows(graph, producer, consumer)
    return _other_half(producer, consumer)


def _same_rows(graph: OpGraph, producer: Group, consumer: Group) -> bool:
    """Whether each row of the result depends on one row of the product."""
    rows = {graph.buffers[name].shape[:-1] for name in producer.outputs & consumer.inputs}
    given = {graph.buffers[name].shape[:-1] for node in consumer.nodes for name in node.outputs}
    return rows == given and by_rows(graph, producer, consumer)


def _other_half(producer: Group, consumer: Group) -> bool:
    """Whether the consumer has a product with the same activations, and combines the two element by element."""
    theirs = products(consumer)
    if len(theirs) != 1 or consumer.nodes[0] not in theirs or roles_of(consumer) != {Role.PRODUCT, Role.ELEMENT}:
        return False
    (own, *others), other = products(producer), theirs[0]
    same = own.short == other.short and own.arguments[0] == other.arguments[0]
    return not others and same and not producer.outputs & other.reads
