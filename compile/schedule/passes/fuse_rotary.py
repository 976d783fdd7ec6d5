"""The pass fuse-rotary."""

from __future__ import annotations

from dataclasses import dataclass

from bringup.compile.schedule.graph.merging import can_merge, merge_pairs, merged, only_reader
from bringup.compile.schedule.graph.op_graph import Group, OpGraph
from bringup.compile.schedule.graph.roles import NORMS, Role, products, role_of, roles_of

_OF_HEADS = NORMS | {"cat"}


@dataclass(frozen=True)
class FuseRotary:
    """Fuses the operations on queries and keys between projection and attention into one launch.

    These are the norms of heads, RoPE, and the writes to the caches. With `into_product` they are fused into the
    projection, if one product computes queries, keys and values.
    """

    name = "fuse-rotary"
    into_product: bool = True

    def __call__(self, graph: OpGraph) -> OpGraph:
        graph = merge_pairs(graph, _head_work)
        graph = _side_by_side(graph)
        return merge_pairs(graph, _after_product) if self.into_product else graph


def _head_work(graph: OpGraph, producer: Group, consumer: Group) -> bool:
    """Whether the groups are a norm of heads and RoPE, or RoPE and the write of a cache."""
    return _of_heads(graph, producer) and _of_heads(graph, consumer) and only_reader(graph, producer, consumer)


def _of_heads(graph: OpGraph, group: Group) -> bool:
    """Whether all nodes are norms of heads, RoPE or writes of caches."""
    return all(
        role_of(node) in (Role.ROTARY, Role.CACHE)
        or (node.short in _OF_HEADS and len(graph.buffers[node.outputs[0]].shape) == 3)
        for node in group.nodes
    )


def _side_by_side(graph: OpGraph) -> OpGraph:
    """Merges the groups of queries, keys and values of one projection, and those of one layer's RoPE."""
    at = 0
    while at < len(graph.groups):
        own = graph.groups[at]
        partner = next(
            (
                n
                for n in range(at + 1, len(graph.groups))
                if _belong(graph, own, graph.groups[n]) and can_merge(graph, at, n)
            ),
            None,
        )
        if partner is None:
            at += 1
        else:
            graph = merged(graph, at, partner)
    return graph


def _belong(graph: OpGraph, one: Group, other: Group) -> bool:
    if not (_of_heads(graph, one) and _of_heads(graph, other)):
        return False
    tables = {Role.ROTARY, Role.CACHE} & roles_of(one) and {Role.ROTARY, Role.CACHE} & roles_of(other)
    return bool(tables) and bool(_sources(graph, one) & _sources(graph, other))


def _sources(graph: OpGraph, group: Group) -> set[str]:
    """The sources of a group's heads: the products that it reads, and the shared tables of RoPE."""
    kinds = {name: graph.buffers[name].kind for name in group.inputs}
    return {
        name for name, kind in kinds.items() if kind in ("temporary", "value") and len(graph.buffers[name].shape) > 1
    }


def _after_product(graph: OpGraph, producer: Group, consumer: Group) -> bool:
    if len(products(producer)) != 1 or not _of_heads(graph, consumer):
        return False
    given = {name for name in consumer.inputs if graph.buffers[name].kind == "temporary"}
    return given <= producer.outputs
