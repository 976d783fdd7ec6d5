from __future__ import annotations

from dataclasses import dataclass

from bringup.compile.schedule.graph.merging import can_merge, merge_pairs, merged, only_reader
from bringup.compile.schedule.graph.op_graph import Group, OpGraph
from bringup.compile.schedule.graph.roles import NORMS, Role, products, role_of, roles_of

_OF_HEADS = NORMS | {"cat"}


@dataclass(frozen=True)
class FuseRotary:
    """What happens to queries and keys between their projection and attention becomes one launch.

    That is the norms of heads, rope, and the write into the caches. With `into_product` it is done where one product
    gives queries, keys and values, before they are stored.
    """

    name = "fuse-rotary"
    into_product: bool = True

    def __call__(self, graph: OpGraph) -> OpGraph:
        graph = merge_pairs(graph, _head_work)
        graph = _side_by_side(graph)
        return merge_pairs(graph, _after_product) if self.into_product else graph


def _head_work(graph: OpGraph, producer: Group, consumer: Group) -> bool:
    """A norm of heads before rope; rope before the write of a cache."""
    return _of_heads(graph, producer) and _of_heads(graph, consumer) and only_reader(graph, producer, consumer)


def _of_heads(graph: OpGraph, group: Group) -> bool:
    """Whether it is norms of heads, rope and writes of caches."""
    return all(
        role_of(node) in (Role.ROTARY, Role.CACHE)
        or (node.short in _OF_HEADS and len(graph.buffers[node.outputs[0]].shape) == 3)
        for node in group.nodes
    )


def _side_by_side(graph: OpGraph) -> OpGraph:
    """The groups of queries, keys and values of one projection, and of one layer's rope, as one."""
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
    """What a group's heads come from: the products that it reads; the tokens' positions for rope of both."""
    kinds = {name: graph.buffers[name].kind for name in group.inputs}
    return {
        name for name, kind in kinds.items() if kind in ("temporary", "value") and len(graph.buffers[name].shape) > 1
    }


def _after_product(graph: OpGraph, producer: Group, consumer: Group) -> bool:
    if len(products(producer)) != 1 or not _of_heads(graph, consumer):
        return False
    given = {name for name in consumer.inputs if graph.buffers[name].kind == "temporary"}
    return given <= producer.outputs
