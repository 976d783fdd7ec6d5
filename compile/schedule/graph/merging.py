"""Which groups of an OpGraph can become one, and the order of groups after that."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from bringup.compile.schedule.graph.op_graph import Group, OpGraph, within_rows

Accepts = Callable[[OpGraph, Group, Group], bool]


def merge_pairs(graph: OpGraph, accepts: Accepts) -> OpGraph:
    """Merges a group with one that reads its results, while `accepts(graph, producer, consumer)` finds such a pair."""
    while (found := next(_pairs(graph, accepts), None)) is not None:
        graph = merged(graph, *found)
    return graph


def merged(graph: OpGraph, first: int, second: int) -> OpGraph:
    """The graph with two groups as one, in an order that respects what reads what. `can_merge` has to hold."""
    below = _followers(graph, first)
    between = range(first + 1, second)
    before = [number for number in between if number not in below]
    after = [number for number in between if number in below]
    groups = graph.groups
    joined = Group(groups[first].nodes + groups[second].nodes)
    order = [*groups[:first], *(groups[n] for n in before), joined, *(groups[n] for n in after), *groups[second + 1 :]]
    return graph.with_groups(order)


def can_merge(graph: OpGraph, first: int, second: int) -> bool:
    """Whether nothing between the two needs the first and is needed by the second."""
    below = _followers(graph, first)
    return not any(
        number in below and _follows(graph.groups[second], graph.groups[number]) for number in range(first + 1, second)
    )


def by_rows(graph: OpGraph, producer: Group, consumer: Group) -> bool:
    """Whether each row of what the consumer reads of the producer is part of the same row that this gives."""
    views = (view for node in consumer.nodes for view in node.views if view.buffer in producer.outputs)
    return all(within_rows(view, graph.buffers[view.buffer]) for view in views)


def only_reader(graph: OpGraph, producer: Group, consumer: Group) -> bool:
    """Whether nothing but the consumer reads what the producer gives."""
    at = graph.groups.index(consumer)
    return not producer.outputs & graph.given and all(
        reader == at for name in producer.outputs for reader in graph.readers.get(name, ())
    )


def _pairs(graph: OpGraph, accepts: Accepts) -> Iterator[tuple[int, int]]:
    for second, consumer in enumerate(graph.groups):
        for first in range(second - 1, -1, -1):
            producer = graph.groups[first]
            related = producer.outputs & consumer.inputs and accepts(graph, producer, consumer)
            if related and can_merge(graph, first, second):
                yield first, second


def _followers(graph: OpGraph, first: int) -> set[int]:
    """The groups that have to run after a group, directly or through others."""
    found: set[int] = set()
    for number in range(first + 1, len(graph.groups)):
        group = graph.groups[number]
        if any(_follows(group, graph.groups[other]) for other in (first, *found)):
            found.add(number)
    return found


def _follows(later: Group, earlier: Group) -> bool:
    """Whether a group reads what an earlier one gives or changes, or changes what that reads or changes."""
    written = earlier.outputs | earlier.updates
    return bool(later.inputs & written or later.updates & (earlier.inputs | earlier.updates))
