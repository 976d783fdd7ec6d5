"""Splits groups that no kernel of an architecture takes."""

from __future__ import annotations

from bringup.compile.kernels.select.registry import calls_of
from bringup.compile.schedule.graph.op_graph import OpGraph
from bringup.compile.schedule.split import split_groups


def split(graph: OpGraph, capability: str) -> OpGraph:
    """As `split_groups`. Raises BU504 for an operation that no kernel takes."""
    return split_groups(graph, lambda own, group: calls_of(own, group, capability) is not None, capability)
