"""Handwritten functions of a few nodes, whose kernels run on the emulator and are compared with torch in float64."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import ml_dtypes
import numpy as np
import torch

from bringup.compile.cache.store import default_store
from bringup.compile.kernels.aot import compile_kernels
from bringup.compile.kernels.call import KernelCall
from bringup.compile.kernels.select.registry import calls_of
from bringup.compile.schedule.graph.op_graph import Argument, Buffer, DType, Group, Kind, Node, OpGraph, View, whole
from bringup.compile.schedule.reference_ops import own_ops, run_node
from tests.kernels.emulated import Emulated

NUMPY = {
    **{"float64": np.float64, "float32": np.float32, "bfloat16": ml_dtypes.bfloat16, "float16": np.float16},
    **{"int64": np.int64, "int32": np.int32, "int16": np.int16, "int8": np.int8, "uint8": np.uint8, "bool": bool},
}


class Function:
    """A graph of one group, built node by node; `array` gives what a buffer starts with."""

    def __init__(self, seed: int = 0) -> None:
        self.buffers: dict[str, Buffer] = {}
        self.arrays: dict[str, np.ndarray] = {}
        self.nodes: list[Node] = []
        self.random = np.random.default_rng(seed)

    def given(self, name: str, shape: Sequence[int], dtype: str = "float32", kind: Kind = "weight") -> View:
        """A buffer of random numbers."""
        array = self.random.standard_normal(tuple(shape)).astype(NUMPY[dtype])
        return self.array(name, array, dtype, kind)

    def array(self, name: str, array: np.ndarray, dtype: str, kind: Kind = "weight") -> View:
        self.buffers[name] = Buffer(name=name, shape=array.shape, dtype=dtype, kind=kind)
        self.arrays[name] = array
        return whole(self.buffers[name])

    def node(self, op: str, shapes: Mapping[str, tuple[Sequence[int], str]], /, **arguments: Argument) -> View:
        """A node that gives the buffers `shapes`, by name; its first result."""
        for name, (shape, dtype) in shapes.items():
            self.buffers[name] = Buffer(name=name, shape=tuple(shape), dtype=dtype, kind="temporary")
        mutated = own_ops()[op.split(".")[1]].mutated if op.startswith("bringup.") else ()
        updates = tuple(view.buffer for key in mutated if isinstance(view := arguments.get(key), View))
        self.nodes.append(
            Node(
                op=op,
                names=tuple(arguments),
                arguments=tuple(arguments.values()),
                outputs=tuple(shapes),
                updates=updates,
            )
        )
        return whole(self.buffers[next(iter(shapes))]) if shapes else View("", (), ())

    def graph(self, *results: str) -> OpGraph:
        return OpGraph("f", self.buffers, (Group(tuple(self.nodes)),), tuple(whole(self.buffers[n]) for n in results))

    def started(self) -> dict[str, np.ndarray]:
        """What every buffer starts with: those that nodes give as NaN, or -1."""
        results = {
            name: np.full(buffer.shape, np.nan if "float" in buffer.dtype else -1).astype(NUMPY[buffer.dtype])
            for name, buffer in self.buffers.items()
            if name not in self.arrays
        }
        return self.arrays | results

    def emulated(self, graph: OpGraph, capability: str, **settings: object) -> Emulated:
        """Runs the kernel calls of all groups, all checks on; results start as NaN."""
        calls = list[KernelCall]()
        for group in graph.groups:
            found = calls_of(graph, group, capability)
            assert found is not None
            calls += found
        compiled = compile_kernels([call.kernel for call in calls], capability, default_store())
        results = {
            name: np.full(self.buffers[name].shape, np.nan if "float" in self.buffers[name].dtype else -1).astype(
                NUMPY[self.buffers[name].dtype]
            )
            for name in graph.planned
        }
        machine = Emulated(self.arrays | results, max(call.scratch for call in calls))
        for call in calls:
            self.run = machine.run(call, compiled[call.kernel])
        return machine

    def expected(self, wide: bool = True) -> dict[str, np.ndarray]:
        """What every buffer has after all nodes, by torch: in float64, or in the dtypes that nodes give."""
        own = {
            name: torch.from_numpy(
                np.asarray(array, np.float64 if "float" in self.buffers[name].dtype else None).copy()
            )
            for name, array in self.arrays.items()
        }
        if not wide:
            own = {name: tensor.to(getattr(torch, self.buffers[name].dtype)) for name, tensor in own.items()}

        def tensor_of(view: View) -> torch.Tensor:
            part = own[view.buffer].as_strided(view.shape, view.strides, view.offset)
            return part if self.buffers[view.buffer].kind == "state" else part.contiguous()

        for node in self.nodes:
            results = run_node(_widened(node) if wide else node, tensor_of)
            own.update((name, result.contiguous()) for name, result in zip(node.outputs, results, strict=True))
        return {name: tensor.to(torch.float64).numpy() for name, tensor in own.items()}


def _widened(node: Node) -> Node:
    """The same node, without roundings to a narrower dtype."""
    arguments = tuple(
        DType("float64") if isinstance(value, DType) and "float" in value.name else value for value in node.arguments
    )
    return Node(op=node.op, names=node.names, arguments=arguments, outputs=node.outputs, updates=node.updates)


def far(found: np.ndarray, expected: np.ndarray) -> float:
    """The largest difference over the largest number; infinity where one is not finite."""
    wide = np.asarray(found, np.float64)
    if not np.isfinite(wide).all():
        return float("inf")
    return float(np.abs(wide - expected).max() / max(np.abs(expected).max(), 1e-30))
