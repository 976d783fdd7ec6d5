# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""What a traced graph says of its function: shapes, dtypes, and the states that it updates in place."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from operator import getitem
from typing import TYPE_CHECKING, Any

from bringup.compile.program.program import Function, Value
from bringup.graphs.core.step import FIELDS

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import Node


def function_of(name: str, weights: Sequence[str], states: Sequence[str], exported: ExportedProgram) -> Function:
    """The function of a graph that was exported with (weights, states, values, step), in that order.

    A size that is not fixed (the number of cache blocks) is -1.
    """
    nodes = {node.name: node for node in exported.graph.nodes}
    inputs = [nodes[given] for given in exported.graph_signature.user_inputs]
    first, second = len(weights), len(weights) + len(states)
    third = len(inputs) - len(FIELDS)
    updated = set(updated_inputs(exported.graph.nodes))
    return Function(
        name=name,
        weights=tuple(weights),
        states=tuple(states),
        values=tuple(map(value_of, inputs[second:third])),
        results=tuple(value_of(nodes[str(given)]) for given in exported.graph_signature.user_outputs),
        updates=tuple(state for state, node in zip(states, inputs[first:second], strict=True) if node in updated),
    )


def value_of(node: Node) -> Value:
    """Shape and dtype of what a node gives."""
    value = node.meta["val"]
    shape = tuple(size if isinstance(size, int) else -1 for size in value.shape)
    return shape, str(value.dtype).removeprefix("torch.")


def updated_inputs(nodes: Iterable[Any]) -> Iterator[Node]:
    """The placeholders that operations of a graph write to, themselves or through a view."""
    base: dict[Any, Any] = {}
    for node in nodes:
        if node.op == "placeholder":
            base[node] = node
        if node.target is getitem and node.args[0] in base:  # one of several views
            base[node] = base[node.args[0]]
        schema = getattr(node.target, "_schema", None)
        if schema is None:
            continue
        taken = {argument.name: value for argument, value in zip(schema.arguments, node.args, strict=False)}
        for argument in schema.arguments:
            value = {**taken, **node.kwargs}.get(argument.name)
            if argument.alias_info is None or not isinstance(value, Hashable) or value not in base:
                continue
            if argument.alias_info.is_write:
                yield base[value]
            if any(result.alias_info for result in schema.returns):
                base[node] = base[value]
