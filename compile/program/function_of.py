# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""The interface of a traced graph: shapes, dtypes, and the states that it updates in place."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from bringup.compile.program.program import EntryPoint, Function, Value
from bringup.diagnostics import fail
from bringup.graphs.core.step import FIELDS

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import Node


def function_of(name: str, weights: Sequence[str], states: Sequence[str], exported: ExportedProgram) -> Function:
    """The function of a graph that was exported with the arguments (weights, states, values, step), in that order.

    A symbolic size (the number of cache blocks) is -1. Raises BU304 if the graph changes an input in place that is not
    a state, or the shape of any input.
    """
    from bringup.compile.program.functional_run import changed_inputs

    nodes = {node.name: node for node in exported.graph.nodes}
    inputs = [nodes[given] for given in exported.graph_signature.user_inputs]
    first, second = len(weights), len(weights) + len(states)
    third = len(inputs) - len(FIELDS)
    updated, reshaped = changed_inputs(exported)
    if reshaped:
        message = f"the stage `{name}` changes the shape or strides of an input in place: {_names(reshaped)}"
        raise fail("BU304", message, help="write `x = x.transpose(0, 1)` for `x.transpose_(0, 1)`")
    if changed := updated - set(inputs[first:second]):
        raise fail(
            "BU304",
            f"the stage `{name}` changes an input in place: {_names(changed)}",
            help="only states may change in place: write `x = x + y` for `x += y`",
        )
    return Function(
        name=name,
        weights=tuple(weights),
        states=tuple(states),
        values=tuple(value_of(node.meta["val"]) for node in inputs[second:third]),
        results=tuple(value_of(nodes[str(given)].meta["val"]) for given in exported.graph_signature.user_outputs),
        updates=tuple(state for state, node in zip(states, inputs[first:second], strict=True) if node in updated),
    )


def check_certain(point: EntryPoint, function: Function, kinds: Sequence[str], exported: ExportedProgram) -> None:
    """Raises BU304 if a function for steps with proposals updates recurrent states without reading what is certain.

    `kinds` are those of the states that it updates.
    """
    if not point.proposals:
        return
    given = list(exported.graph_signature.user_inputs)[FIELDS.index("certain") - len(FIELDS)]
    is_read = any(node.name == given and node.users for node in exported.graph.nodes)
    if "sequence" in kinds and not is_read:
        message = f"the stage `{function.name}` would store recurrent states after proposals of a draft"
        raise fail("BU304", message, help="store those after `step.num_certain()` tokens, or omit --draft-tokens")


def value_of(value: Any) -> Value:
    """Shape and dtype of a tensor; a symbolic size is -1."""
    shape = tuple(size if isinstance(size, int) else -1 for size in value.shape)
    return shape, str(value.dtype).removeprefix("torch.")


def _names(nodes: Iterable[Node]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(node.name for node in nodes))
