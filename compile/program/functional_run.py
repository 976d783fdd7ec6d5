# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false
"""Runs a traced graph without in-place updates: its results, and the inputs that it changes.

torch's functionalization gives a tensor that is written to another value, whatever writes to it: one operation, an
operation of lists, or a graph inside the graph (`torch.autocast`, `torch.enable_grad`). An input whose value is another
one after the run is changed.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence, Set
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx
from torch._dispatch.python import enable_python_dispatcher
from torch._guards import detect_fake_mode
from torch._subclasses.functional_tensor import FunctionalTensor, FunctionalTensorMode
from torch.export import ExportedProgram
from torch.export.graph_signature import OutputKind
from torch.utils._pytree import tree_leaves


class FunctionalRun(NamedTuple):
    """The results of a run, and the new values of the inputs that it changes, by their place among all inputs.

    `reshaped` are the places of inputs whose shape or strides it changes.
    """

    results: list[Any]
    changed: Mapping[int, Any]
    reshaped: Set[int]


class ChangedInputs(NamedTuple):
    """The placeholders that a graph gives new values, and those that it gives another shape or other strides."""

    updated: Set[fx.Node]
    reshaped: Set[fx.Node]


def functional_run(exported: ExportedProgram, inputs: Sequence[Any]) -> FunctionalRun:
    """Runs a graph in `functional_mode`, on tensors without content or on proxies of them."""
    wrapped = [_wrapped(value) for value in inputs]
    results: Any = fx.Interpreter(exported.graph_module).run(*wrapped, enable_io_processing=False)
    after = [_unwrapped(value) for value in wrapped]
    return FunctionalRun(
        results=[_unwrapped(value) for value in results],
        changed={place: value for place, value in enumerate(after) if value is not inputs[place]},
        reshaped={place for place, value in enumerate(wrapped) if _reshaped(value)},
    )


def changed_inputs(exported: ExportedProgram) -> ChangedInputs:
    """The inputs that a graph changes in place; of a program after `run_decompositions`, by its results too.

    A graph is run for it only where its operations alone do not tell.
    """
    given, names = placeholders(exported), updated_by_results(exported)
    by_name = {node for node in given if node.name in names}
    if (written := _written(exported)) is not None:
        return ChangedInputs(updated=by_name | {node for node in given if written & _storages(node)}, reshaped=set())
    values = [node.meta["val"] for node in given]
    with functional_mode(values):
        _, changed, reshaped = functional_run(exported, values)
    return ChangedInputs(updated=by_name | {given[place] for place in changed}, reshaped={given[p] for p in reshaped})


def _written(exported: ExportedProgram) -> set[int] | None:
    """The storages that operations say they write to; None where one has a graph inside or gives an input a shape."""
    found: set[int] = set()
    for node in exported.graph.nodes:
        if node.op == "get_attr" or isinstance(node.target, torch._ops.HigherOrderOperator):
            return None
        if not isinstance(node.target, torch._ops.OpOverload) or not node.target._schema.is_mutable:
            continue
        if torch.Tag.inplace_view in node.target.tags:
            return None
        arguments = node.target._schema.arguments
        given = dict(zip((argument.name for argument in arguments), node.args, strict=False)) | node.kwargs
        for argument in arguments:
            if argument.alias_info is not None and argument.alias_info.is_write:
                found.update(*map(_storages, tree_leaves(given.get(argument.name))))
    return found


def _storages(node: Any) -> set[int]:
    """Where a node's tensors are: a view is where the tensor is that it is a view of."""
    values = tree_leaves(node.meta["val"]) if isinstance(node, fx.Node) else []
    return {value.untyped_storage()._cdata for value in values if isinstance(value, Tensor)}


def updated_by_results(exported: ExportedProgram) -> list[str]:
    """The names of inputs that the first results are new values of."""
    specs = exported.graph_signature.output_specs
    return [spec.target for spec in specs if spec.kind is OutputKind.USER_INPUT_MUTATION and spec.target]


def placeholders(exported: ExportedProgram) -> list[fx.Node]:
    """All inputs of a graph, in order: constants, and the user's."""
    return [node for node in exported.graph.nodes if node.op == "placeholder"]


@contextmanager
def functional_mode(values: Sequence[Any]) -> Generator[None]:
    """The state that torch.export traces in, of tensors without content such as `values`."""
    from torch.export._trace import _ignore_backend_decomps  # which takes a second

    mode = detect_fake_mode(values)
    with (
        _ignore_backend_decomps(),
        torch.no_grad(),
        nullcontext() if mode is None else mode,
        enable_python_dispatcher(),
        FunctionalTensorMode(export=True),
    ):
        yield


def _wrapped(value: Any) -> Any:
    return FunctionalTensor.to_functional(value) if isinstance(value, Tensor) else value


def _unwrapped(value: Any) -> Any:
    if not isinstance(value, FunctionalTensor):
        return value
    torch._sync(value)
    return torch._from_functional_tensor(value.elem)


def _reshaped(value: Any) -> bool:
    return isinstance(value, FunctionalTensor) and torch._functionalize_has_metadata_mutation(value.elem)
