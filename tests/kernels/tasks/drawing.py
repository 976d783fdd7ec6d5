"""A token sampled from logits, and the fields of the next step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from bringup.compile.gpu.sampling import settings_of
from bringup.compile.kernels.call import KernelCall, Pointer
from bringup.compile.kernels.select.registry import head_calls_of
from bringup.compile.kernels.select.sampling import ADVANCED, DRAWN, LOGITS, sampling_calls
from bringup.compile.program.program import Draw
from bringup.compile.schedule.graph.op_graph import Buffer, Group, Node, OpGraph, whole
from tests.kernels.graphs import NUMPY, Function
from tests.kernels.tasks.task import Task, step_of

DRAWS = [Draw(0.8, 0.9, 0.7), Draw(0.0, 1.0, 0.0), Draw(0.8, 1.0, 0.3, 20)]


def drawing(rows: int, vocab: int, dtype: str) -> Task:
    """A token of a nucleus, the likeliest one and one of the 20 likeliest, and the fields of the next step."""
    random = np.random.default_rng(4)
    logits = (2 * random.standard_normal((rows, vocab))).astype(NUMPY[dtype])
    buffer = Buffer(name=LOGITS, shape=logits.shape, dtype=dtype, kind="temporary")
    return _drawn({LOGITS: buffer}, {LOGITS: logits}, (), sampling_calls(dtype, rows, vocab, 1), DRAWS[:rows])


def head(rows: int, vocab: int, dtype: str) -> Task:
    """The same by the product that computes the logits, all of them negative; greedy. Each odd token is as likely as
    the token before it.
    """
    f = Function()
    x = f.array("x", np.abs(f.random.standard_normal((rows, 40))).astype(NUMPY[dtype]), dtype, "value")
    matrix = np.repeat(-np.abs(f.random.standard_normal((vocab // 2 + 1, 40))), 2, 0)[:vocab]
    weight = f.array("weight", matrix.astype(NUMPY[dtype]), dtype)
    f.node("bringup.linear.default", {"out": ((rows, vocab), dtype)}, x=x, weight=weight, bias=None)
    graph = f.graph("out")
    last = head_calls_of(graph, graph.groups[0], "sm_80", "out")
    assert last
    (after,) = sampling_calls(dtype, rows, vocab, 1, filled=True)
    arguments = (Pointer("out") if each == Pointer(LOGITS) else each for each in after.arguments)
    calls = (*last, replace(after, arguments=tuple(arguments)))
    task = _drawn(graph.buffers, f.arrays, tuple(f.nodes), calls, [Draw(0.0, 1.0, 0.0)] * rows)
    return replace(task, kernel=last[0].kernel.stem)


def _drawn(
    given: Mapping[str, Buffer],
    arrays: Mapping[str, np.ndarray],
    nodes: tuple[Node, ...],
    calls: tuple[KernelCall, ...],
    draws: list[Draw],
) -> Task:
    rows = len(draws)
    fields = {name: array.astype(np.int64) for name, array in step_of((40,) * rows, (1,) * rows, 1).items()}
    own = {**settings_of(draws, rows), **{name: fields[f"step_{name}"] for name in ADVANCED}}
    own[DRAWN] = np.zeros(rows, np.int64)
    buffers = {
        name: Buffer(name=name, shape=each.shape, dtype=each.dtype.name, kind="step") for name, each in own.items()
    }
    updates = tuple(name for name in ADVANCED if name != "block_table")
    node = Node(op="bringup.draw.default", names=(), arguments=(), outputs=(DRAWN,), updates=updates)
    graph = OpGraph("f", {**given, **buffers}, (Group((*nodes, node)),), (whole(buffers[DRAWN]),))
    return Task(graph, {**arrays, **own}, calls)
