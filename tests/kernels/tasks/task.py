"""A small launch: a graph with one group, and the arrays that it reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bringup.compile.kernels.call import KernelCall
from bringup.compile.schedule.graph.op_graph import OpGraph
from bringup.graphs.core.step import FIELDS
from tests.kernels.graphs import Function


@dataclass(frozen=True)
class Task:
    """A graph of one group. `arrays` has what each buffer starts with, but for what the group gives.

    `kernel`: the only one of its kernels in which faults are planted, where the others have tasks of their own.
    """

    graph: OpGraph
    arrays: Mapping[str, np.ndarray]
    calls: tuple[KernelCall, ...] = ()  # in place of those that are selected for the group
    kernel: str = ""


def task_of(f: Function, *names: str) -> Task:
    return Task(f.graph(*names), f.arrays)


def step_of(lengths: Sequence[int], new: Sequence[int], blocks: int) -> dict[str, np.ndarray]:
    table = np.random.default_rng(5).permutation(len(lengths) * blocks).reshape(len(lengths), blocks)
    positions = [np.arange(length - count, length) for length, count in zip(lengths, new, strict=True)]
    values = {
        **{"tokens": np.zeros(sum(new)), "slots": np.zeros(sum(new)), "starts": np.cumsum([0, *new])},
        **{"positions": np.concatenate(positions), "rows": np.arange(len(lengths)), "block_table": table},
        **{"lengths": np.array(lengths), "totals": np.array(lengths), "certain": np.array(new)},
    }
    return {f"step_{name}": values[name].astype(np.int64) for name in FIELDS}
