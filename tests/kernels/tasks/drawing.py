"""A token sampled from logits, and the fields of the next step."""

from __future__ import annotations

import numpy as np

from bringup.compile.gpu.sampling import settings_of
from bringup.compile.kernels.select.sampling import ADVANCED, DRAWN, LOGITS, sampling_calls
from bringup.compile.program.program import Draw
from bringup.compile.schedule.graph.op_graph import Buffer, Group, Node, OpGraph, whole
from tests.kernels.graphs import NUMPY
from tests.kernels.tasks.task import Task, step_of

DRAWS = [Draw(0.8, 0.9, 0.7), Draw(0.0, 1.0, 0.0), Draw(0.8, 1.0, 0.3, 20)]


def drawing(rows: int, vocab: int, dtype: str) -> Task:
    """A token of a nucleus, the likeliest one and one of the 20 likeliest, and the fields of the next step."""
    random = np.random.default_rng(4)
    logits = (2 * random.standard_normal((rows, vocab))).astype(NUMPY[dtype])
    fields = {name: array.astype(np.int64) for name, array in step_of((40,) * rows, (1,) * rows, 1).items()}
    arrays = {
        LOGITS: logits,
        **settings_of(DRAWS[:rows], rows),
        **{name: fields[f"step_{name}"] for name in ADVANCED},
        DRAWN: np.zeros(rows, np.int64),
    }
    buffers = {
        name: Buffer(name=name, shape=each.shape, dtype=each.dtype.name, kind="temporary")
        for name, each in arrays.items()
    }
    updates = tuple(name for name in ADVANCED if name != "block_table")
    node = Node(op="bringup.draw.default", names=(), arguments=(), outputs=(DRAWN,), updates=updates)
    graph = OpGraph("f", buffers, (Group((node,)),), (whole(buffers[DRAWN]),))
    return Task(graph, arrays, sampling_calls(dtype, rows, vocab, 1))
