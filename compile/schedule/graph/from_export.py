# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportPrivateUsage=false
"""Converts a traced function to an OpGraph: views become strides, symbolic sizes become their upper bounds."""

from __future__ import annotations

import re
from dataclasses import replace
from operator import getitem
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import GraphModule
from torch.fx import Node as TracedNode

from bringup.compile.program.program import Function
from bringup.compile.schedule.graph.changes import change
from bringup.compile.schedule.graph.decomposed import is_whole, named, results_of, written_out
from bringup.compile.schedule.graph.op_graph import (
    Argument,
    Buffer,
    DType,
    Group,
    Kind,
    Node,
    OpGraph,
    View,
    dense,
    tensors_in,
    whole,
)
from bringup.compile.schedule.graph.strides import viewed
from bringup.compile.schedule.graph.unread import without_unread
from bringup.diagnostics import fail
from bringup.graphs.core.step import FIELDS
from bringup.spec import DTYPES, Shape, Site

if TYPE_CHECKING:
    from torch.export import ExportedProgram

SAME = frozenset({"aten.lift_fresh_copy.default", "aten.lift_fresh.default", "aten.detach_.default"})  # the argument
IN_PLACE = {
    "aten.squeeze_.dim": torch.ops.aten.squeeze.dim,
    "aten.unsqueeze_.default": torch.ops.aten.unsqueeze.default,
    "aten.transpose_.default": torch.ops.aten.transpose.int,
}
FEW = 64  # the largest number of elements of a constant in a program
TRACING = "compile/program/"  # the files that call a model's source
IGNORED = frozenset({"aten._assert_tensor_metadata.default"})
COPY, COPY_NAMES = "aten.clone.default", ("self", "memory_format")
# Arguments that state the device, layout or memory format of a tensor, which a schedule does not have.
_PLACES = ("torch.device", "torch.layout", "torch.memory_format")


def op_graph(function: Function, exported: ExportedProgram) -> OpGraph:
    """The graph of a traced stage, with each node in a separate group.

    A view (slice, transpose, reshape, …) becomes the strides of its reader; if strides cannot express it, it is a view
    of a copy. Raises BU403 for an operator whose arguments are neither tensors nor plain settings, for a size that is
    known only in a step, and for a dtype that no kernel supports.
    """
    return _Conversion(function, exported).graph()


class _Conversion:
    def __init__(self, function: Function, exported: ExportedProgram) -> None:
        self.function, self.exported = function, exported
        self.buffers: dict[str, Buffer] = {}
        self.nodes: list[Node] = []
        self.values: dict[TracedNode, Any] = {}  # a View, a list of Views, or a number
        self.site: Site | None = None  # of the node that is being converted
        self._scope = ""  # the prefix of names in the decomposition of an operator
        self._changes = any(_changes(node.target) for node in exported.graph.nodes if node.op == "call_function")
        limits = exported.range_constraints.items()
        self.sizes = {symbol: int(limit.upper) for symbol, limit in limits if limit.upper.is_Integer}

    def graph(self) -> OpGraph:
        nodes = {node.name: node for node in self.exported.graph.nodes}
        names = self.exported.graph_signature.user_inputs
        for (name, kind), traced in zip(self._inputs(), names, strict=True):
            node = nodes[str(traced)]
            value = node.meta["val"]
            self.values[node] = self._buffer(name, self._shape(value.shape), value.dtype, kind)
        for node in self.exported.graph.nodes:
            if node.op == "placeholder" and node not in self.values:
                self.values[node] = self._constant(node)
            self.site = _site_of(node)
            if node.op == "call_function" and str(node.target) not in IGNORED:
                self.values[node] = self._call(node)
        names = [str(name) for name in self.exported.graph_signature.user_outputs]
        results = self._results([self.values[nodes[name]] for name in names])
        return without_unread(
            OpGraph(self.function.name, self.buffers, tuple(Group((node,)) for node in self.nodes), results)
        )

    def _results(self, views: list[View]) -> tuple[View, ...]:
        """Each result as a complete, separate temporary, which is a value of the next call."""
        results: list[View] = []
        for number, view in enumerate(views):
            buffer = self.buffers[view.buffer]
            if buffer.kind != "temporary" or view != whole(buffer) or view in results:
                view = self.copied(f"result.{number}", view)
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
            return self.values[of][at]  # pyright: ignore[reportArgumentType]
        if not isinstance(node.target, torch._ops.OpOverload):  # arithmetic on sizes
            return self._size(node.meta["val"])
        if not isinstance(node.meta.get("val"), torch.Tensor | tuple | list | None):
            return self._size(node.meta["val"])
        target = IN_PLACE.get(str(node.target), node.target)  # changes only the view in place
        schema = target._schema
        given = dict(zip((argument.name for argument in schema.arguments), node.args, strict=False)) | node.kwargs
        arguments = [self._argument(given.get(a.name, a.default_value), node) for a in schema.arguments]
        if str(node.target) in SAME:
            return arguments[0]
        if any(each.alias_info is not None and not each.alias_info.is_write for each in schema.returns):
            return self._view(target, node, arguments)
        if schema.is_mutable and target.namespace == "aten":
            return change(self, target, arguments, f"{self._scope}{node.name}")
        return self._compute(target, arguments, node.name, node.meta.get("val"))

    def _view(self, target: Any, node: TracedNode, arguments: list[Argument]) -> Any:
        """The result of an operator that may be a view of its first argument, computed without memory."""
        source = arguments[0]
        assert isinstance(source, View)
        buffer = self.buffers[source.buffer]
        if str(target) == "aten.contiguous.default" and buffer.kind != "state" and not self._changes:
            return source  # readers support any strides
        found = viewed(target, source, buffer.dtype, arguments)
        if found is None:  # no strides express it
            source = self.copied(f"{self._scope}{node.name}.copy", source)
            found = viewed(target, source, buffer.dtype, arguments)
        if isinstance(found, list | View):
            return found
        if found is False and str(target) in ("aten.contiguous.default", "aten.reshape.default"):
            view = self.copied(f"{self._scope}{node.name}", source)
            shape = self._shape(node.meta["val"].shape)
            return viewed(torch.ops.aten.reshape.default, view, buffer.dtype, [view, shape])
        return self._compute(target, arguments, node.name, node.meta.get("val"))

    def copied(self, name: str, view: View) -> View:
        given = self.buffers[view.buffer].dtype
        copy = self._buffer(f"%{name}", view.shape, getattr(torch, given), "temporary")
        self.nodes.append(Node(op=COPY, names=COPY_NAMES, arguments=(view, None), outputs=(copy.buffer,)))
        return copy

    def replace(self, buffer: str, other: str) -> None:
        """Changes all views of a buffer to views of another one with its shape."""

        def moved(value: Any) -> Any:
            if isinstance(value, list):
                return [moved(item) for item in value]
            return replace(value, buffer=other) if isinstance(value, View) and value.buffer == buffer else value

        self.values = {node: moved(value) for node, value in self.values.items()}

    def refused(self, why: str) -> Exception:
        message = f"the program cannot be scheduled: {why}"
        return fail("BU403", message, help="write it with other operations, or use another target", where=self.site)

    def computed(self, target: Any, arguments: list[Argument], name: str) -> Any:
        """The result of an operator that is not in the trace."""
        return self._compute(target, arguments, name, None)

    def _compute(self, target: Any, arguments: list[Argument], name: str, value: Any) -> Any:
        """Adds a node, or the nodes of an operator's decomposition. `value`: its traced results, None if unknown."""
        if not is_whole(target, arguments) and (module := written_out(target, arguments, self.buffers)):
            return self._inlined(module, arguments, name)
        if value is None and target._schema.returns:
            value = results_of(target, arguments, self.buffers)
        return self._node(target, arguments, name, value)

    def _inlined(self, module: GraphModule, arguments: list[Argument], name: str) -> Any:
        """Adds the nodes of a graph whose inputs are the tensors among `arguments`; returns its results."""
        scope, self._scope = self._scope, f"{self._scope}{name}."
        given = iter(tensors_in(tuple(arguments)))
        result: Any = None
        for node in module.graph.nodes:
            match node.op:
                case "placeholder":
                    self.values[node] = next(given)
                case "get_attr":
                    self.values[node] = self._fixed(getattr(module, node.target), node.name)
                case "output":
                    (out,) = node.args
                    result = [self.values[each] for each in out] if isinstance(out, list | tuple) else self.values[out]
                case _:
                    self.values[node] = self._call(node)
        self._scope = scope
        return result

    def _constant(self, node: TracedNode) -> View:
        """A constant tensor that a forward creates. Raises BU403 for one without values."""
        name = self.exported.graph_signature.inputs_to_lifted_tensor_constants.get(node.name)
        if name is None:
            raise self.refused("a forward creates a constant tensor; declare it as a Const")
        tensor = self.exported.constants[name]
        assert isinstance(tensor, torch.Tensor)
        return self._fixed(tensor, node.name)

    def _fixed(self, tensor: torch.Tensor, name: str) -> View:
        """A small constant, written into the program element by element. Raises BU403 for more than FEW elements."""
        numbers = tensor.flatten().tolist()
        if len(numbers) > FEW or not numbers:
            raise self.refused(f"a forward creates a constant of {len(numbers)} elements; declare it as a Const")
        full, aten = torch.ops.aten.full.default, torch.ops.aten
        dtype = DType(str(tensor.dtype).removeprefix("torch."))
        if len(set(numbers)) == 1:
            return self.computed(full, [tuple(tensor.shape), numbers[0], dtype, None, None, None], name)
        parts = [
            self.computed(full, [(1,), value, dtype, None, None, None], f"{name}.{at}")
            for at, value in enumerate(numbers)
        ]
        every = self.computed(aten.cat.default, [tuple(parts), 0], name)
        return View(every.buffer, tuple(tensor.shape), dense(tuple(tensor.shape)))

    def _node(self, target: Any, arguments: list[Argument], name: str, value: Any) -> Any:
        listed = [] if value is None else [value] if isinstance(value, torch.Tensor) else list(value)
        suffixes = [""] if isinstance(value, torch.Tensor) else [f".{number}" for number in range(len(listed))]
        views = [
            self._buffer(f"%{self._scope}{name}{suffix}", self._shape(each.shape), each.dtype, "temporary")
            for suffix, each in zip(suffixes, listed, strict=True)
        ]
        schema = target._schema
        pairs = zip(schema.arguments, arguments, strict=True)
        written = [view for info, view in pairs if info.alias_info and info.alias_info.is_write]
        for view in written:
            if not isinstance(view, View) or self.buffers[view.buffer].kind != "state":
                raise self.refused(f"the operator `{target}` changes a tensor that is not a state")
        op, names, given = named(target, arguments)
        node_of = Node(
            op=op,
            names=names,
            arguments=given,
            outputs=tuple(view.buffer for view in views),
            updates=tuple(view.buffer for view in written if isinstance(view, View)),
            site=self.site,
        )
        self.nodes.append(node_of)
        return views[0] if isinstance(value, torch.Tensor) else views

    def _buffer(self, name: str, shape: Shape, dtype: torch.dtype, kind: Kind) -> View:
        buffer = Buffer(name=name, shape=shape, dtype=str(dtype).removeprefix("torch."), kind=kind)
        if buffer.dtype not in DTYPES:
            raise self.refused(f"the program computes with {buffer.dtype}, which no kernel supports")
        self.buffers[name] = buffer
        return whole(buffer)

    def _shape(self, shape: Any) -> Shape:
        return tuple(self._size(size) for size in shape)

    def _size(self, size: Any) -> int:
        """A size; a symbolic one is its upper bound, to which the step's block table is padded."""
        if isinstance(size, int | float | bool):
            return size  # pyright: ignore[reportReturnType]
        found = size.node.expr.subs(self.sizes)
        if not found.is_Integer:
            raise self.refused("the size of a tensor depends on values that are known only in a step")
        return int(found)

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
                raise self.refused(f"the operator `{node.target}` has an argument of type {type(value).__name__}")


def _changes(target: Any) -> bool:
    """Whether an operator of torch changes a tensor in place."""
    return isinstance(target, torch._ops.OpOverload) and target.namespace == "aten" and target._schema.is_mutable


def _site_of(node: TracedNode) -> Site | None:
    """The innermost line of the model's source that created a node; None if the trace has no lines."""
    lines = re.findall(r'File "([^"]+)", line (\d+)', node.meta.get("stack_trace") or "")
    lines = [(file, line) for file, line in lines if TRACING not in file]
    return Site(lines[-1][0], int(lines[-1][1])) if lines else None
