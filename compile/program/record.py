# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false
"""A function on tensors as a graph of torch's operators, recorded while it runs on the meta device.

For targets with fixed sizes. torch.export, which supports symbolic sizes, produces the same graph in several times as
long: it imports its compiler (1.5 s), and runs each operator on a fake tensor and on a proxy.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from operator import getitem
from typing import Any

import torch
from torch import Tensor, fx
from torch._dispatch.python import enable_python_dispatcher
from torch._ops import OpOverload
from torch.export.graph_signature import (
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    TensorArgument,
)
from torch.fx.experimental.proxy_tensor import ProxyTorchDispatchMode
from torch.fx.node import map_aggregate
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

_PLACES = [getattr(Tensor, name).__get__ for name in ("device", "is_cpu", "is_cuda", "is_meta")]


class Unrecordable(ValueError):
    """A graph of operators on tensors cannot represent the function."""


@contextmanager
def as_exported() -> Generator[None]:
    """In the block, a function on the meta device takes the same branches as under torch.export.

    torch reports that it compiles and exports. Reading the device of a tensor raises Unrecordable, because in a trace
    the tensor is on another device.
    """
    from torch import compiler

    flags = ("_is_compiling_flag", "_is_exporting_flag")
    before = {name: getattr(compiler, name) for name in flags}
    try:
        for name in flags:
            setattr(compiler, name, True)
        with _NoPlaces():
            yield
    finally:
        for name, value in before.items():
            setattr(compiler, name, value)


class _NoPlaces(TorchFunctionMode):
    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in _PLACES:
            raise Unrecordable("the device of a tensor")
        return func(*args, **(kwargs or {}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """A graph with the attributes of an `ExportedProgram` that readers of graphs need. All sizes are fixed."""

    graph_module: fx.GraphModule
    graph_signature: ExportGraphSignature
    range_constraints: dict[Any, Any] = field(default_factory=dict[Any, Any])

    @property
    def graph(self) -> fx.Graph:
        return self.graph_module.graph


def recorded(function: Callable[[], Sequence[Tensor]], inputs: Sequence[Tensor]) -> Recorded:
    """The operators that `function` applies to `inputs`, all on the meta device, before torch decomposes them.

    Raises Unrecordable for a constant tensor, for a graph in the graph, and for an operator that reshapes a tensor in
    place; RuntimeError, TypeError or ValueError if the function needs the values of tensors.
    """
    recorder = _Recorder(inputs)
    try:
        with enable_python_dispatcher(), recorder:
            results = function()
    except AssertionError as error:  # torch's, of a graph in the graph
        raise Unrecordable(str(error)) from error
    graph = recorder.graph
    given, taken = [recorder.node_of(tensor) for tensor in results], recorder.given
    graph.output(tuple(given))
    graph.eliminate_dead_code()
    signature = ExportGraphSignature(
        input_specs=[InputSpec(InputKind.USER_INPUT, TensorArgument(node.name), None) for node in taken],
        output_specs=[OutputSpec(OutputKind.USER_OUTPUT, TensorArgument(node.name), None) for node in given],
    )
    return Recorded(graph_module=fx.GraphModule(torch.nn.Module(), graph), graph_signature=signature)


class _Recorder(ProxyTorchDispatchMode):
    """Records each operator and runs it. It shares with torch's own mode only its position in the dispatcher."""

    def __init__(self, inputs: Sequence[Tensor]) -> None:
        TorchDispatchMode.__init__(self, torch._C.DispatchKey.PreDispatch)
        self._mode_key = torch._C._TorchDispatchModeKey.PROXY
        self.enter_stack = []
        self.graph = fx.Graph()
        self.nodes: dict[int, fx.Node] = {}  # by id of a tensor, which its node keeps alive
        self.created: dict[int, fx.Node] = {}  # without inputs, by storage: Python gets another tensor object
        self.given = [self._named(self.graph.placeholder(f"input_{at}"), each) for at, each in enumerate(inputs)]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # otherwise torch imports dynamo at the first operator, to disable it

    def __torch_dispatch__(
        self, func: OpOverload, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if torch.Tag.inplace_view in func.tags or any(map(torch.is_autocast_enabled, ("cpu", "cuda"))):
            raise Unrecordable(f"{func}")
        given, named = map_aggregate(args, self.node_of), map_aggregate(kwargs or {}, self.node_of)
        name = func.overloadpacket.__name__  # torch.export's name of the node, which printed schedules show
        node = self.graph.create_node("call_function", func, given, named, name)
        results: Any = func(*args, **(kwargs or {}))
        node.meta["val"] = results
        if isinstance(results, Tensor):
            if not node.all_input_nodes:
                self.created[results.untyped_storage()._cdata] = node
            return self._named(node, results).meta["val"]
        if not isinstance(results, list | tuple):
            return results
        for at, each in enumerate(results):
            if isinstance(each, Tensor):
                self._named(self.graph.call_function(getitem, (node, at)), each)
        return results

    def _named(self, node: fx.Node, tensor: Tensor) -> fx.Node:
        node.meta["val"] = tensor
        self.nodes[id(tensor)] = node
        return node

    def node_of(self, value: Any) -> Any:
        """The node whose result is a tensor; other values are unchanged."""
        if not isinstance(value, Tensor):
            return value
        node = self.nodes.get(id(value)) or self.created.get(value.untyped_storage()._cdata)
        if node is None or node.meta["val"].size() != value.size() or node.meta["val"].stride() != value.stride():
            raise Unrecordable("a constant tensor")
        return node
