# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportPrivateUsage=false
"""Operators that change a tensor in place: a changed temporary becomes a new one, a state is written in place."""

from __future__ import annotations

from typing import Any, Protocol

import torch

from bringup.compile.schedule.graph.op_graph import Argument, Buffer, DType, Node, View, whole
from bringup.compile.schedule.graph.roles import WRITES
from bringup.compile.schedule.graph.strides import expanded
from bringup.spec import Site

_ROWS = {"aten.index_copy_.default": False, "aten.index_add_.default": True}  # whether rows are added


class Function(Protocol):
    """The function that is being converted."""

    buffers: dict[str, Buffer]
    nodes: list[Node]
    site: Site | None

    def computed(self, target: Any, arguments: list[Argument], name: str) -> Any:
        """Adds a call of an operator; returns its result."""
        ...

    def copied(self, name: str, view: View) -> View:
        """A dense copy of a view, in a new temporary."""
        ...

    def replace(self, buffer: str, other: str) -> None:
        """Changes all views of a buffer to views of another one with its shape."""
        ...

    def refused(self, why: str) -> Exception:
        """BU403, at the node that is being converted."""
        ...


def change(function: Function, target: Any, arguments: list[Argument], name: str) -> View:
    """Converts an operator; returns the changed tensor.

    Raises BU403 for an operator that changes several tensors, or one that is neither a state nor a temporary.
    """
    written = [n for n, info in enumerate(target._schema.arguments) if info.alias_info and info.alias_info.is_write]
    view = arguments[written[0]]
    assert isinstance(view, View)
    kind = function.buffers[view.buffer].kind
    if len(written) > 1 or kind not in ("state", "temporary"):
        raise function.refused(f"the operator `{target}` changes a tensor that is not a state")
    if kind == "state":
        _change_state(function, target, arguments, view, name)
        return view
    return _change_temporary(function, target, arguments, view, name)


def _change_state(function: Function, target: Any, arguments: list[Argument], view: View, name: str) -> None:
    others = [_apart(function, value, view.buffer, f"{name}.{n}") for n, value in enumerate(arguments[1:])]
    if str(target) in _ROWS and others[-1] in (1, others[1] if len(others) == 3 else 1, arguments[3]):
        target, others = _as_put(target, view, others)
    if str(target) not in WRITES or _has_mask(function, others):
        value = _value(function, target, [view, *others], view, name)
        target, others = torch.ops.aten.copy_.default, [value, False]
    if str(target) == "aten.copy_.default":
        source = others[0]
        assert isinstance(source, View)
        others = [expanded(source, view.shape), False]
    names = tuple(info.name for info in target._schema.arguments)
    updates = (view.buffer,)
    function.nodes.append(
        Node(op=str(target), names=names, arguments=(view, *others), outputs=(), updates=updates, site=function.site),
    )


def _as_put(target: Any, view: View, others: list[Argument]) -> tuple[Any, list[Argument]]:
    """An operator on rows of one index, as `index_put_`."""
    axis, index, source = others[:3]
    assert isinstance(axis, int)
    listed = (*(None,) * (axis % len(view.shape)), index)
    return torch.ops.aten.index_put_.default, [listed, source, _ROWS[str(target)]]


def _change_temporary(function: Function, target: Any, arguments: list[Argument], view: View, name: str) -> View:
    buffer = function.buffers[view.buffer]
    value = _value(function, target, arguments, view, name)
    if view != whole(buffer):
        scatter = torch.ops.aten.as_strided_scatter.default
        value = function.computed(
            scatter, [whole(buffer), value, view.shape, view.strides, view.offset], f"{name}.whole"
        )
    elif value != whole(function.buffers[value.buffer]) or function.buffers[value.buffer].kind != "temporary":
        value = function.copied(f"{name}.whole", value)
    function.replace(view.buffer, value.buffer)
    return View(value.buffer, view.shape, view.strides, view.offset)


def _value(function: Function, target: Any, arguments: list[Argument], view: View, name: str) -> View:
    """The value that an operator writes to a view, with the view's shape and dtype, in separate memory."""
    dtype = function.buffers[view.buffer].dtype
    if str(target) == "aten.copy_.default":
        source = arguments[1]
        assert isinstance(source, View)
        value = function.copied(f"{name}.value", expanded(source, view.shape))
    else:
        short, overload = str(target).split(".")[1:]
        packet = getattr(torch.ops.aten, short.removesuffix("_"))
        value = function.computed(getattr(packet, overload), arguments, f"{name}.value")
    assert isinstance(value, View)
    if function.buffers[value.buffer].dtype != dtype:
        cast = torch.ops.aten.to.dtype
        value = function.computed(cast, [value, DType(dtype), False, False, None], f"{name}.cast")
    return expanded(value, view.shape) if value.shape != view.shape else value


def _apart(function: Function, value: Argument, state: str, name: str) -> Argument:
    """The argument; a copy of it if it is a part of the state that changes."""
    if isinstance(value, View) and value.buffer == state:
        return function.copied(name, value)
    return value


def _has_mask(function: Function, others: list[Argument]) -> bool:
    """Whether an index is a boolean mask."""
    listed = others[0] if others and isinstance(others[0], tuple) else ()
    return any(isinstance(each, View) and function.buffers[each.buffer].dtype == "bool" for each in listed)
