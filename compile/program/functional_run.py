# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false
"""Runs a traced graph without in-place updates: its results, and the inputs that it changes.

In torch's functionalization a tensor that is written has another value afterwards, whatever writes it: an operation, an
operation on lists, or a graph in the graph (`torch.autocast`, `torch.enable_grad`). So an input is changed if its value
after the run is another one.
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
    """The results of a run, and the new values of changed inputs, by their index among all inputs.

    `reshaped` are the indices of inputs whose shape or strides change.
    """

    results: list[Any]
    changed: Mapping[int, Any]
    reshaped: Set[int]


class ChangedInputs(NamedTuple):
    """The placeholders whose values a graph changes, and those whose shape or strides it changes."""

    updated: Set[fx.Node]
    reshaped: Set[fx.Node]


def functional_run(exported: ExportedProgram, inputs: Sequence[Any]) -> FunctionalRun:
    """Runs a graph in `functional_mode`, on fake tensors or on proxies of them."""
    wrapped = [_wrapped(value) for value in inputs]
    results: Any = fx.Interpreter(exported.graph_module).run(*wrapped, enable_io_processing=False)
    after = [_unwrapped(value) for value in wrapped]
    return FunctionalRun(
        results=[_unwrapped(value) for value in results],
        changed={place: value for place, value in enumerate(after) if value is not inputs[place]},
        reshaped={place for place, value in enumerate(wrapped) if _reshaped(value)},
    )


def changed_inputs(exported: ExportedProgram) -> ChangedInputs:
    """The inputs that a graph changes in place; in a program after `run_decompositions`, also by its results.

    The graph is run only if the schemas of its operations are not sufficient.
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
    """The storages that operations write, by their schemas; None if one contains a graph or reshapes an input."""
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
    """The storages of a node's tensors; a view shares that of its base."""
    values = tree_leaves(node.meta["val"]) if isinstance(node, fx.Node) else []
    return {value.untyped_storage()._cdata for value in values if isinstance(value, Tensor)}


def updated_by_results(exported: ExportedProgram) -> list[str]:
    """The names of the inputs whose new values are the first results."""
    specs = exported.graph_signature.output_specs
    return [spec.target for spec in specs if spec.kind is OutputKind.USER_INPUT_MUTATION and spec.target]


def placeholders(exported: ExportedProgram) -> list[fx.Node]:
    """All inputs of a graph, in order: constants, and the user's."""
    return [node for node in exported.graph.nodes if node.op == "placeholder"]


@contextmanager
def functional_mode(values: Sequence[Any]) -> Generator[None]:
    """The modes of torch that `torch.export` traces with, for fake tensors such as `values`."""
    from torch.export._trace import _ignore_backend_decomps  # this import takes a second

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
