"""Compares results and states of emulated functions with those of numpy in float64."""

from __future__ import annotations

import numpy as np

from bringup.compile.schedule.graph.op_graph import View
from tests.kernels.graphs import Function, far
from tests.kernels.recurrent.functions import CERTAIN, PLACES, PROPOSED, ROWS, Step

# Sums in another order; in 16 bits the result is rounded once. The state of a convolution is exact.
NEAR = {"float32": 3e-6, "bfloat16": 4e-3, "float16": 5e-4}

# Of a state in float32: sums in another order; in chunks, products of sums of two terms, with an error of up to 2⁻¹⁷.
STATE, IN_CHUNKS = 3e-6, 2**-17


def parts(step: Step) -> list[tuple[int, int, slice, int]]:
    """(tokens before, new tokens that are stored, slice of all new tokens, row of the state) of each sequence."""
    found: list[tuple[int, int, slice, int]] = []
    start = 0
    for (before, new), row, certain in zip(step[0], PLACES, CERTAIN, strict=False):
        found.append((before, certain if step is PROPOSED else new, slice(start, start + new), row))
        start += new
    return found


def wide(f: Function, name: str) -> np.ndarray:
    return f.arrays[name].astype(np.float64)


def check(f: Function, step: Step, out: np.ndarray, state: np.ndarray, dtype: str, near: float) -> None:
    """Runs the function on both architectures, and compares results of real tokens, and states, with those given.

    `near`: the accepted error of a state, and of a result in float32.
    """
    real = sum(new for _, new in step[0])
    for capability in ("sm_90", "sm_80"):
        graph = f.graph("out")
        machine = f.emulated(graph, capability)
        found, after = machine.read("out"), machine.read("state")
        assert np.isfinite(found.astype(np.float64)).all(), "padding is finite"
        assert far(found[:real], out[:real]) <= max(NEAR[dtype], near)
        for _, _, _, row in parts(step):
            assert far(after[row], state[row]) <= near
        others = sorted(set(range(ROWS)) - {row for *_, row in parts(step)})
        np.testing.assert_array_equal(after[others].view(np.uint8), f.arrays["state"][others].view(np.uint8))


def operands(f: Function) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Queries, keys and values of linear attention."""
    (node,) = f.nodes
    found: list[np.ndarray] = []
    for name in ("q_NGK", "k_NGK", "v_NGRV"):
        view = node.argument(name)
        assert isinstance(view, View)
        flat = wide(f, view.buffer).reshape(-1)[view.offset :]
        found.append(np.lib.stride_tricks.as_strided(flat, view.shape, tuple(8 * stride for stride in view.strides)))
    q, k, v = found
    return q, k, v
