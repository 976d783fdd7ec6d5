# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false
"""A function of tensors as a graph of torch's operators, recorded while it runs on the meta device.

For targets that want every size as a number. torch.export, which can leave a size open, gives the same graph in several
times as long: it imports its compiler (1.5 s), and runs each operator on a fake tensor and on a proxy.
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
    """The function does what a graph of operators on tensors does not say."""


@contextmanager
def as_exported() -> Generator[None]:
    """In the block, a function on the meta device takes the branches that it takes when torch.export traces it.

    torch says that it compiles and exports. Reading on which device a tensor is raises Unrecordable: a trace has it on
    another one.
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
            raise Unrecordable("on which device a tensor is")
        return func(*args, **(kwargs or {}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """A graph, with those attributes of an `ExportedProgram` that a reader of graphs needs. No size is open."""

    graph_module: fx.GraphModule
    graph_signature: ExportGraphSignature
    range_constraints: dict[Any, Any] = field(default_factory=dict[Any, Any])

    @property
    def graph(self) -> fx.Graph:
        return self.graph_module.graph


def recorded(function: Callable[[], Sequence[Tensor]], inputs: Sequence[Tensor]) -> Recorded:
    """What `function` does with `inputs`, all on the meta device: its operators, before torch takes them apart.

    Raises Unrecordable for a tensor of numbers, for a graph in the graph, and for what gives a tensor
    another shape in place; RuntimeError, TypeError or ValueError where the function needs what tensors hold.
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
    """Writes each operator down and runs it. Of torch's own mode it has only the place in the dispatcher."""

    def __init__(self, inputs: Sequence[Tensor]) -> None:
        TorchDispatchMode.__init__(self, torch._C.DispatchKey.PreDispatch)
        self._mode_key = torch._C._TorchDispatchModeKey.PROXY
        self.enter_stack = []
        self.graph = fx.Graph()
        self.nodes: dict[int, fx.Node] = {}  # by id of a tensor, which its node keeps alive
        self.created: dict[int, fx.Node] = {}  # from no tensor, by storage: Python gets another tensor of it
        self.given = [self._named(self.graph.placeholder(f"input_{at}"), each) for at, each in enumerate(inputs)]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch imports dynamo at the first operator, to keep out of it

    def __torch_dispatch__(
        self, func: OpOverload, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if torch.Tag.inplace_view in func.tags or any(map(torch.is_autocast_enabled, ("cpu", "cuda"))):
            raise Unrecordable(f"{func}")
        given, named = map_aggregate(args, self.node_of), map_aggregate(kwargs or {}, self.node_of)
        name = func.overloadpacket.__name__  # as torch.export names nodes: printed schedules have the names
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
        """The node that gives a tensor; what is no tensor stays as it is."""
        if not isinstance(value, Tensor):
            return value
        node = self.nodes.get(id(value)) or self.created.get(value.untyped_storage()._cdata)
        if node is None or node.meta["val"].size() != value.size() or node.meta["val"].stride() != value.stride():
            raise Unrecordable("a tensor of numbers")
        return node
