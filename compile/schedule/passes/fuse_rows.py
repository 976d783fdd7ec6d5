"""The pass fuse-rows."""

from __future__ import annotations

from dataclasses import dataclass

from bringup.compile.schedule.graph.merging import merge_pairs, only_reader
from bringup.compile.schedule.graph.op_graph import Group, OpGraph
from bringup.compile.schedule.graph.roles import NORMS, Role, roles_of


@dataclass(frozen=True)
class FuseRows:
    """Fuses operations on complete rows, with one program per row, into one launch.

    These are the routing of a mixture of experts with up to `widest` experts, and a norm with element-wise operations
    on its result, such as the sum with the residual.
    """

    name = "fuse-rows"
    widest: int = 1024

    def __call__(self, graph: OpGraph) -> OpGraph:
        return merge_pairs(graph, self._joins)

    def _joins(self, graph: OpGraph, producer: Group, consumer: Group) -> bool:
        both = (producer, consumer)
        if any(not roles_of(group) <= {Role.ROW, Role.ELEMENT} for group in both):
            return False
        nodes = [node for group in both for node in group.nodes]
        if any(node.short in NORMS for node in nodes):
            return _after_norm(graph, producer, consumer)
        if Role.ROW not in roles_of(producer) | roles_of(consumer):
            return False
        widths = {graph.buffers[name].shape[-1] for node in nodes for name in node.outputs if graph.buffers[name].shape}
        rows = {graph.buffers[name].shape[0] for node in nodes for name in node.outputs if graph.buffers[name].shape}
        return max(widths) <= self.widest and len(rows) == 1 and _read_by(graph, producer, consumer)


def _after_norm(graph: OpGraph, producer: Group, consumer: Group) -> bool:
    """Whether the consumer is element-wise operations on a norm's rows."""
    shapes = {graph.buffers[name].shape for group in (producer, consumer) for name in group.outputs}
    return (
        producer.nodes[0].short in NORMS
        and roles_of(consumer) == {Role.ELEMENT}
        and len(shapes) == 1
        and only_reader(graph, producer, consumer)
    )


def _read_by(graph: OpGraph, producer: Group, consumer: Group) -> bool:
    """Whether the consumer reads results of the producer; scores may be read by a later part of the routing too."""
    return only_reader(graph, producer, consumer) or bool(producer.outputs & consumer.inputs)
