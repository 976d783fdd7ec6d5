"""A function of one node on named arrays, and its kernel calls on the emulator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from bringup.compile.cache.store import default_store
from bringup.compile.kernels.aot import compile_kernels
from bringup.compile.kernels.select.registry import calls_of
from bringup.compile.schedule.graph.op_graph import Buffer, Group, Node, OpGraph, whole
from tests.kernels.emulated import Emulated


def node_graph(op: str, arrays: Mapping[str, np.ndarray], settings: Mapping[str, Any]) -> OpGraph:
    """Of `op`, whose arguments are the arrays by name and then settings; the array `out` is its result."""
    buffers = {
        name: Buffer(name=name, shape=array.shape, dtype=array.dtype.name, kind="temporary")
        for name, array in arrays.items()
    }
    arguments = {name: whole(buffer) for name, buffer in buffers.items() if name != "out"} | dict(settings)
    node = Node(
        op=f"bringup.{op}.default", names=tuple(arguments), arguments=tuple(arguments.values()), outputs=("out",)
    )
    return OpGraph("f", buffers, (Group((node,)),), (whole(buffers["out"]),))


def result(graph: OpGraph, arrays: Mapping[str, np.ndarray], capability: str) -> np.ndarray:
    """`out` after all calls, with late copies; with early ones and shuffled blocks it is the same."""
    calls = calls_of(graph, graph.groups[0], capability)
    assert calls is not None
    compiled = compile_kernels([call.kernel for call in calls], capability, default_store())
    found: list[np.ndarray] = []
    for copies, seed in (("latest", None), ("earliest", 1)):
        memory = Emulated(arrays, max(call.scratch for call in calls))
        for call in calls:
            memory.run(call, compiled[call.kernel], copies=copies, seed=seed)
        found.append(memory.read("out"))
    np.testing.assert_array_equal(*found)
    return found[0]
