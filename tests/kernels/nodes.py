"""A function of one node on named arrays, and its kernel calls on the emulator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from bringup.compile.cache.store import default_store
from bringup.compile.kernels.aot import compile_kernels
from bringup.compile.kernels.select.registry import calls_of
from bringup.compile.schedule.graph.op_graph import Buffer, Group, Node, OpGraph, whole
from bringup.graphs.core.step import FIELDS
from tests.kernels.emulated import Emulated


def step_of(lengths: list[int], new: list[int], padding: int, blocks: int) -> dict[str, np.ndarray]:
    """The fields of a step with `new` tokens of sequences of these lengths, whose blocks are in a random order."""
    table = np.random.default_rng(5).permutation(len(lengths) * blocks).reshape(len(lengths), blocks)
    positions = [np.arange(length - count, length) for length, count in zip(lengths, new, strict=True)]
    tokens = sum(new) + padding
    step = {
        **{"tokens": np.zeros(tokens), "slots": np.zeros(tokens), "starts": np.cumsum([0, *new]), "block_table": table},
        **{"positions": np.concatenate([*positions, np.zeros(padding)]), "rows": np.arange(len(lengths))},
        **{"lengths": np.array(lengths), "totals": np.array(lengths), "certain": np.array(new)},
    }
    return {f"step_{name}": step[name].astype(np.int64) for name in FIELDS}


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
