"""The conditions for merging groups of an OpGraph, and the order of groups afterwards."""

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
    """The graph with two groups merged, in an order that respects dependencies. `can_merge` must hold."""
    below = _followers(graph, first)
    between = range(first + 1, second)
    before = [number for number in between if number not in below]
    after = [number for number in between if number in below]
    groups = graph.groups
    joined = Group(groups[first].nodes + groups[second].nodes)
    order = [*groups[:first], *(groups[n] for n in before), joined, *(groups[n] for n in after), *groups[second + 1 :]]
    return graph.with_groups(order)


def can_merge(graph: OpGraph, first: int, second: int) -> bool:
    """Whether no group between the two depends on the first while the second depends on it."""
    below = _followers(graph, first)
    return not any(
        number in below and _follows(graph.groups[second], graph.groups[number]) for number in range(first + 1, second)
    )


def by_rows(graph: OpGraph, producer: Group, consumer: Group) -> bool:
    """Whether the consumer reads in each row only elements of the same row of the producer's results."""
    views = (view for node in consumer.nodes for view in node.views if view.buffer in producer.outputs)
    return all(within_rows(view, graph.buffers[view.buffer]) for view in views)


def only_reader(graph: OpGraph, producer: Group, consumer: Group) -> bool:
    """Whether only the consumer reads the results of the producer."""
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
    """The groups that must run after a group, directly or through others."""
    found: set[int] = set()
    for number in range(first + 1, len(graph.groups)):
        group = graph.groups[number]
        if any(_follows(group, graph.groups[other]) for other in (first, *found)):
            found.add(number)
    return found


def _follows(later: Group, earlier: Group) -> bool:
    """Whether a group reads what an earlier one writes, or changes what that one reads or changes."""
    written = earlier.outputs | earlier.updates
    return bool(later.inputs & written or later.updates & (earlier.inputs | earlier.updates))
