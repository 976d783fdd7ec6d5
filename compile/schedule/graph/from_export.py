# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportPrivateUsage=false
"""A traced function as an OpGraph: views become strides, symbolic sizes the largest that they can be."""

from __future__ import annotations

from operator import getitem
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import Node as TracedNode

from bringup.compile.program.program import Function
from bringup.compile.schedule.graph.op_graph import (
    Argument,
    Buffer,
    DType,
    Group,
    Kind,
    Node,
    OpGraph,
    View,
    whole,
)
from bringup.diagnostics import fail
from bringup.graphs.core.step import FIELDS
from bringup.spec import DTYPES, Shape

if TYPE_CHECKING:
    from torch.export import ExportedProgram

IGNORED = frozenset({"aten._assert_tensor_metadata.default"})
COPY, COPY_NAMES = "aten.clone.default", ("self", "memory_format")
# Operators that only state where a tensor is, or how: not settings of a plan.
_PLACES = ("torch.device", "torch.layout", "torch.memory_format")


def op_graph(function: Function, exported: ExportedProgram) -> OpGraph:
    """The graph of a traced stage, each node a group of its own.

    A view (slice, transpose, reshape, …) becomes the strides of its reader. Where no strides can express one, it is a
    view of a copy. Raises BU403 for an operator whose arguments are neither tensors nor plain settings, and for a
    dtype that no kernel takes.
    """
    return _Conversion(function, exported).graph()


class _Conversion:
    def __init__(self, function: Function, exported: ExportedProgram) -> None:
        self.function, self.exported = function, exported
        self.buffers: dict[str, Buffer] = {}
        self.nodes: list[Node] = []
        self.values: dict[TracedNode, Any] = {}  # a View, a list of Views, or a number
        self.sizes = {symbol: int(limits.upper) for symbol, limits in exported.range_constraints.items()}

    def graph(self) -> OpGraph:
        nodes = {node.name: node for node in self.exported.graph.nodes}
        names = self.exported.graph_signature.user_inputs
        for (name, kind), traced in zip(self._inputs(), names, strict=True):
            node = nodes[str(traced)]
            value = node.meta["val"]
            self.values[node] = self._buffer(name, self._shape(value.shape), value.dtype, kind)
        for node in self.exported.graph.nodes:
            if node.op == "placeholder" and node not in self.values:
                raise _refused("a forward creates a tensor of fixed numbers; declare it as a Const")
            if node.op == "call_function" and str(node.target) not in IGNORED:
                self.values[node] = self._call(node)
        names = [str(name) for name in self.exported.graph_signature.user_outputs]
        results = self._results([self.values[nodes[name]] for name in names])
        return without_unread(
            OpGraph(self.function.name, self.buffers, tuple(Group((node,)) for node in self.nodes), results)
        )

    def _results(self, views: list[View]) -> tuple[View, ...]:
        """Each result as a whole temporary of its own, which the next call takes as its value."""
        results: list[View] = []
        for number, view in enumerate(views):
            buffer = self.buffers[view.buffer]
            if buffer.kind != "temporary" or view != whole(buffer) or view in results:
                view = self._copied(f"result.{number}", view)
            results.append(view)
        return tuple(results)

    def _inputs(self) -> list[tuple[str, Kind]]:
        function = self.function
        values, fields = map("value:{}".format, range(len(function.values))), map("step:{}".format, FIELDS)
        kinds: tuple[Kind, ...] = ("weight", "state", "value", "step")
        parts = zip(kinds, (function.weights, function.states, values, fields), strict=True)
        return [(name, kind) for kind, names in parts for name in names]

    def _call(self, node: TracedNode) -> Any:
        if node.target is getitem:
            of, at = node.args
            return self.values[of][at]  # pyright: ignore[reportArgumentType, reportIndexIssue]
        if not isinstance(node.target, torch._ops.OpOverload):  # arithmetic on sizes
            return self._size(node.meta["val"])
        if not isinstance(node.meta.get("val"), torch.Tensor | tuple | list | None):
            return self._size(node.meta["val"])
        schema = node.target._schema
        given = dict(zip((argument.name for argument in schema.arguments), node.args, strict=False)) | node.kwargs
        arguments = [self._argument(given.get(a.name, a.default_value), node) for a in schema.arguments]
        if any(each.alias_info is not None and not each.alias_info.is_write for each in schema.returns):
            return self._view(node, arguments)
        return self._compute(node, arguments)

    def _view(self, node: TracedNode, arguments: list[Argument]) -> Any:
        """The result of an operator that may be a view of its first argument, worked out without memory."""
        source = arguments[0]
        assert isinstance(source, View)
        is_fixed = self.buffers[source.buffer].kind != "state"
        if str(node.target) == "aten.contiguous.default" and is_fixed:  # readers take any strides
            return source
        for attempt in (source, None):
            view = attempt or self._copied(f"{node.name}.copy", source)
            base = _tensor(view, self.buffers[view.buffer].dtype)
            out = _run(node.target, base, arguments)
            if out is None:  # no strides express it
                continue
            listed = out if isinstance(out, list | tuple) else [out]
            if listed[0].dtype != base.dtype:
                return self._compute(node, arguments)
            if all(each.untyped_storage()._cdata == base.untyped_storage()._cdata for each in listed):
                views = [View(view.buffer, tuple(t.shape), tuple(t.stride()), t.storage_offset()) for t in listed]
                return views if isinstance(out, list | tuple) else views[0]
        raise _refused(f"the operator `{node.target}` is neither a view of a dense tensor nor another dtype of it")

    def _copied(self, name: str, view: View) -> View:
        given = self.buffers[view.buffer].dtype
        copy = self._buffer(f"%{name}", view.shape, getattr(torch, given), "temporary")
        self.nodes.append(Node(op=COPY, names=COPY_NAMES, arguments=(view, None), outputs=(copy.buffer,)))
        return copy

    def _compute(self, node: TracedNode, arguments: list[Argument]) -> Any:
        value = node.meta["val"]
        listed = [] if value is None else [value] if isinstance(value, torch.Tensor) else list(value)
        suffixes = [""] if isinstance(value, torch.Tensor) else [f".{number}" for number in range(len(listed))]
        views = [
            self._buffer(f"%{node.name}{suffix}", self._shape(each.shape), each.dtype, "temporary")
            for suffix, each in zip(suffixes, listed, strict=True)
        ]
        schema = node.target._schema  # pyright: ignore[reportAttributeAccessIssue, reportFunctionMemberAccess]
        pairs = zip(schema.arguments, arguments, strict=True)
        written = [view for info, view in pairs if info.alias_info and info.alias_info.is_write]
        for view in written:
            if not isinstance(view, View) or self.buffers[view.buffer].kind != "state":
                raise _refused(f"the operator `{node.target}` changes a tensor that is no state")
        node_of = Node(
            op=str(node.target),
            names=tuple(info.name for info in schema.arguments),
            arguments=tuple(arguments),
            outputs=tuple(view.buffer for view in views),
            updates=tuple(view.buffer for view in written if isinstance(view, View)),
        )
        self.nodes.append(node_of)
        return views[0] if isinstance(value, torch.Tensor) else views

    def _buffer(self, name: str, shape: Shape, dtype: torch.dtype, kind: Kind) -> View:
        buffer = Buffer(name=name, shape=shape, dtype=str(dtype).removeprefix("torch."), kind=kind)
        if buffer.dtype not in DTYPES:
            raise _refused(f"the program computes with {buffer.dtype}, which no kernel takes")
        self.buffers[name] = buffer
        return whole(buffer)

    def _shape(self, shape: Any) -> Shape:
        return tuple(self._size(size) for size in shape)

    def _size(self, size: Any) -> int:
        """A size that is not static is the largest that it can be: the step's block table is padded to it."""
        if isinstance(size, int | float | bool):
            return size  # pyright: ignore[reportReturnType]
        return int(size.node.expr.subs(self.sizes))

    def _argument(self, value: Any, node: TracedNode) -> Argument:
        match value:
            case TracedNode():
                found = self.values[value]
                return tuple(found) if isinstance(found, list) else found
            case torch.dtype():
                return DType(str(value).removeprefix("torch."))
            case None | bool() | int() | float() | str():
                return value
            case list() | tuple():
                return tuple(self._argument(item, node) for item in value)
            case torch.SymInt():
                return self._size(value)
            case _ if str(type(value)).split("'")[1] in _PLACES:
                return None
            case _:
                raise _refused(f"the operator `{node.target}` has an argument of type {type(value).__name__}")


def _refused(why: str) -> Exception:
    return fail(
        "BU403", f"the program cannot be scheduled: {why}", help="write it with other operations, or use another target"
    )


def without_unread(graph: OpGraph) -> OpGraph:
    """Without the nodes that change nothing and whose results nobody reads."""
    read, needed = set(graph.given), list[Group]()
    for group in reversed(graph.groups):
        if group.updates or group.outputs & read:
            needed.append(group)
            read |= group.inputs
    groups = tuple(reversed(needed))
    used = {name for group in groups for name in group.inputs | group.outputs} | set(graph.given)
    used_buffers = {
        name: buffer for name, buffer in graph.buffers.items() if buffer.kind != "temporary" or name in used
    }
    return OpGraph(graph.name, used_buffers, groups, graph.results)


def _tensor(view: View, dtype: str) -> torch.Tensor:
    """A tensor of these strides, without memory."""
    extent = 1 + view.offset + sum((size - 1) * stride for size, stride in zip(view.shape, view.strides, strict=True))
    base = torch.empty(extent, dtype=getattr(torch, dtype), device="meta")
    return base.as_strided(view.shape, view.strides, view.offset)


def _run(target: Any, base: torch.Tensor, arguments: list[Argument]) -> Any:
    """What a view operator gives, None where it refuses the strides."""
    settings = [list(value) if isinstance(value, tuple) else value for value in arguments[1:]]
    settings = [getattr(torch, value.name) if isinstance(value, DType) else value for value in settings]
    positional = [info for info in target._schema.arguments if not info.kwarg_only]
    named = {
        info.name: value for info, value in zip(target._schema.arguments[1:], settings, strict=True) if info.kwarg_only
    }
    try:
        return target(base, *settings[: len(positional) - 1], **named)
    except RuntimeError:
        return None
