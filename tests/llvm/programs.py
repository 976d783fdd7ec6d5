"""A torch function as an OpGraph, traced as a stage of a model is, and the execution of its kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bringup.compile.llvm.module import Loaded, compiled, texts_of
from bringup.compile.llvm.select.call import Call, Kernel
from bringup.compile.llvm.select.registry import calls_of
from bringup.compile.program.function_of import function_of
from bringup.compile.program.torch_arrays import to_numpy
from bringup.compile.schedule.graph.from_export import op_graph
from bringup.compile.schedule.graph.op_graph import OpGraph
from bringup.graphs.core.step import FIELDS
from tests.llvm.native import MACHINES, Memory, run_call

STEP = tuple(torch.zeros(2, dtype=torch.int64) for _ in FIELDS)


class _Stage(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, states: list[Tensor], values: list[Tensor], step: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        found = self.function(*states, *values)
        return found if isinstance(found, tuple) else (found,)


def traced(function: Callable[..., Any], values: Sequence[Tensor], states: Sequence[Tensor] = ()) -> OpGraph:
    """The graph of a function of states and values."""
    with torch.no_grad():
        exported = torch.export.export(_Stage(function), (list(states), list(values), STEP), strict=False)
    names = [f"state{n}" for n in range(len(states))]
    return op_graph(function_of("f", (), names, exported), exported)


def results(
    graph: OpGraph, values: Sequence[Tensor], states: Sequence[Tensor] = (), machine: str = "host", threads: int = 2
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """What its kernels give, and the states after that."""
    arrays: dict[str, np.ndarray] = {
        **{f"value:{n}": to_numpy(tensor) for n, tensor in enumerate(values)},
        **{f"state{n}": to_numpy(tensor) for n, tensor in enumerate(states)},
    }
    memory = compiled_graph(graph, machine).run(arrays | fresh(graph, arrays), threads)
    return [memory.read(view.buffer) for view in graph.results], [memory.read(f"state{n}") for n in range(len(states))]


class Compiled:
    """The kernels of a graph, compiled together."""

    def __init__(self, graph: OpGraph, machine: str) -> None:
        """Raises LookupError for a group that no kernel takes."""
        own = MACHINES[machine]
        self._calls: list[Call] = []
        for group in graph.groups:
            found = calls_of(graph, group, own)
            if found is None:
                raise LookupError(f"no kernel takes `{group.nodes[0].op}`")
            self._calls += found
        self._loaded = _loaded(tuple(call.kernel for call in self._calls), machine)

    def run(self, arrays: Mapping[str, np.ndarray], threads: int) -> Memory:
        """The memory after all calls; bytes around each array are as they were."""
        memory = Memory(arrays)
        for call in self._calls:
            run_call(call, self._loaded, memory, threads)
        memory.check()
        return memory


@cache
def _loaded(kernels: tuple[Kernel, ...], machine: str) -> Loaded:
    """Compiled once: the functions of several steps often have the same kernels."""
    own = MACHINES[machine]
    texts = zip(texts_of(kernels, own), (False, True), strict=True)
    return Loaded([compiled(text, own, vectorise=vectorise) for text, vectorise in texts], own)


def compiled_graph(graph: OpGraph, machine: str) -> Compiled:
    """Compiled once for each graph and machine."""
    key = id(graph), machine
    if key not in _compiled:
        _compiled[key] = (graph, Compiled(graph, machine))
    return _compiled[key][1]


_compiled: dict[tuple[int, str], tuple[OpGraph, Compiled]] = {}


def fresh(graph: OpGraph, given: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Memory of what a function's groups give, filled with bytes of 0xFF: NaN, or -1."""
    found: dict[str, np.ndarray] = {}
    for buffer in graph.buffers.values():
        if buffer.name not in given:
            array = to_numpy(torch.empty(buffer.shape, dtype=getattr(torch, buffer.dtype)))
            array.reshape(-1).view(np.uint8)[:] = 0xFF
            found[buffer.name] = array
    return found


def assert_near(found: np.ndarray, wanted: Tensor, bound: float) -> None:
    """Relative to the result, or to 1 where that is larger; of 16 bits half a step more. NaN is where it should be."""
    theirs = to_numpy(wanted.contiguous())
    assert (found.dtype, found.shape) == (theirs.dtype, theirs.shape)
    steps = {"bfloat16": 2**-7, "float16": 2**-10}
    one, other = (np.asarray(array, np.float64) for array in (found, theirs))
    with np.errstate(invalid="ignore"):
        far = np.abs(one - other) > (bound + steps.get(theirs.dtype.name, 0)) * np.maximum(1, np.abs(other))
    same = (one == other) | (np.isnan(one) & np.isnan(other))
    assert (np.isnan(one) == np.isnan(other)).all(), (one, other)
    assert not (far & ~same).any(), (one[far], other[far])
