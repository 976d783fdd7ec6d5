# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportPrivateUsage=false
"""Runs one node with torch: bringup's own ops by their references, others by torch's operators."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from bringup.compile.schedule.graph.decomposed import COMPOSED
from bringup.compile.schedule.graph.op_graph import Argument, DType, Node, View
from bringup.compile.schedule.graph.roles import WRITES
from bringup.graphs import ops
from bringup.graphs.ops.op import Op
from bringup.graphs.ops.operator import operator_of


@cache
def own_ops() -> Mapping[str, Op[..., Any]]:
    """bringup's own ops by name."""
    modules = (import_module(found.name) for found in pkgutil.walk_packages(ops.__path__, f"{ops.__name__}."))
    listed = (value for module in modules for value in vars(module).values() if isinstance(value, Op))
    return {op.name: op for op in listed}


def check_operators(nodes: Iterable[Node]) -> None:
    """Raises ValueError for an operator that may do more than compute, because files may be malicious.

    Accepted are bringup's own ops, torch's operators that are tagged core or element-wise and do not change their
    arguments, and those that write states; `validate` checks that they write states only.
    """
    for name in {node.op for node in nodes}:
        namespace, _, rest = name.partition(".")
        if namespace == "bringup" and rest.removesuffix(".default") in own_ops():
            continue
        operator = _operator(name) if namespace == "aten" else None
        tags = set(operator.tags) if operator else set[Any]()
        if name in WRITES:
            continue
        if not tags & {torch.Tag.core, torch.Tag.pointwise} and name not in COMPOSED:
            raise ValueError(f"the operator `{name}` is not supported in a schedule")
        if operator and operator._schema.is_mutable:
            raise ValueError(f"the operator `{name}` changes its arguments")


def _operator(name: str) -> Any:
    """torch's operator of a name. Raises ValueError for an unknown name."""
    namespace, short, overload = name.split(".")
    try:
        return getattr(getattr(getattr(torch.ops, namespace), short), overload)
    except AttributeError as error:
        raise ValueError(f"torch has no operator `{name}`") from error


def run_node(node: Node, tensor_of: Callable[[View], Tensor]) -> tuple[Tensor, ...]:
    """Runs a node and returns its results; `updates` are changed in place. Raises KeyError for an unknown op."""
    values = [_value(argument, tensor_of) for argument in node.arguments]
    if node.op.startswith("bringup."):
        op = own_ops()[node.short]
        out = op.reference(**operator_of(op).values(tuple(values)))
    else:
        operator = _operator(node.op)
        if node.short == "as_strided_scatter":  # its strides are those of a tensor with memory of its own
            values[0] = values[0].clone()
        pairs = list(zip(operator._schema.arguments, values, strict=True))
        positional = [value for info, value in pairs if not info.kwarg_only]
        out = operator(*positional, **{info.name: value for info, value in pairs if info.kwarg_only})
    if out is None or not node.outputs:  # torch's operators that write return what they wrote to
        return ()
    return (out,) if isinstance(out, Tensor) else tuple(out)


def _value(argument: Argument, tensor_of: Callable[[View], Tensor]) -> Any:
    match argument:
        case View():
            return tensor_of(argument)
        case DType():
            return getattr(torch, argument.name)
        case tuple():
            return [_value(item, tensor_of) for item in argument]
        case _:
            return argument
