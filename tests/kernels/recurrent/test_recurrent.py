"""Recurrent kernels on the emulator, against float64 by numpy: results and states, with padding and NaN in memory."""

from __future__ import annotations

import numpy as np
import pytest

from bringup.compile.cache.store import default_store
from bringup.compile.kernels.aot import compile_kernels
from bringup.compile.kernels.call import SCRATCH
from bringup.compile.kernels.select.registry import calls_of
from bringup.compile.schedule.costs import bytes_by_buffer, cost_of
from tests.kernels.emulated import Emulated
from tests.kernels.graphs import Function, far
from tests.kernels.recurrent.functions import (
    CHUNKS,
    DECODE,
    FULL,
    PLACES,
    RAGGED,
    ROWS,
    Step,
    convolution,
    delta_rule,
)

# Sums in another order; in 16 bits the result is rounded once. The state of a convolution is exact.
NEAR = {"float32": 3e-6, "bfloat16": 4e-3, "float16": 5e-4}

# Of a state in float32: sums in another order; in chunks, terms with errors of 2⁻¹⁷.
STATE, IN_CHUNKS = 3e-6, 1e-5


def parts(step: Step) -> list[tuple[int, int, slice, int]]:
    """(tokens before, new tokens, their slice, row of the state) of each sequence."""
    found, start = [], 0
    for (before, new), row in zip(step[0], PLACES, strict=False):
        found.append((before, new, slice(start, start + new), row))
        start += new
    return found


def wide(f: Function, name: str) -> np.ndarray:
    return f.arrays[name].astype(np.float64)


def check(f: Function, step: Step, out: np.ndarray, state: np.ndarray, dtype: str, near: float) -> None:
    """Runs the function on both architectures, and compares results of real tokens, and states, with those given.

    `near`: the accepted error of a state.
    """
    real = sum(new for _, new in step[0])
    for capability in ("sm_90", "sm_80"):
        graph = f.graph("out")
        machine = f.emulated(graph, capability)
        found, after = machine.read("out"), machine.read("state")
        assert np.isfinite(found.astype(np.float64)).all(), "padding is finite"
        assert far(found[:real], out[:real]) <= NEAR[dtype]
        for _, _, _, row in parts(step):
            assert far(after[row], state[row]) <= near
        others = sorted(set(range(ROWS)) - {row for *_, row in parts(step)})
        np.testing.assert_array_equal(after[others].view(np.uint8), f.arrays["state"][others].view(np.uint8))


def expected_convolution(f: Function, step: Step, taps: int) -> tuple[np.ndarray, np.ndarray]:
    weight, state = wide(f, "weight"), wide(f, "state")
    x = wide(f, "x")[:, 3 : 3 + weight.shape[0]]
    out = np.zeros_like(x)
    for before, new, part, row in parts(step):
        first = state[row] if before else np.zeros_like(state[row])
        rows = np.concatenate([first, x[part]])
        windows = np.stack([rows[n : n + taps] for n in range(new)])
        out[part] = np.einsum("nkc,ck->nc", windows, weight)
        state[row] = rows[len(rows) - (taps - 1) :]
    return out + (wide(f, "bias") if "bias" in f.arrays else 0), state


@pytest.mark.parametrize(
    ("step", "channels", "taps", "dtype", "bias"),
    [
        (DECODE, 300, 4, "float32", True),
        (DECODE, 37, 3, "bfloat16", False),
        (DECODE, 70, 2, "float16", False),
        (DECODE, 20, 21, "float32", False),  # more taps than the kernel of decode supports
        (RAGGED, 300, 4, "float32", True),
        (RAGGED, 37, 3, "bfloat16", False),
        (RAGGED, 33, 7, "float16", False),
        (RAGGED, 37, 2, "float32", False),
        (FULL, 37, 4, "float32", False),
    ],
)
def test_convolution(step: Step, channels: int, taps: int, dtype: str, bias: bool) -> None:
    f = convolution(step, channels, taps, dtype, decode=step is DECODE, bias=bias)
    check(f, step, *expected_convolution(f, step, taps), dtype, 0)


def expected_delta_rule(f: Function, step: Step) -> tuple[np.ndarray, np.ndarray]:
    (node,) = f.nodes
    arrays = {}
    for name in ("q_NGK", "k_NGK", "v_NGRV"):
        view = node.argument(name)
        flat = wide(f, view.buffer).reshape(-1)[view.offset :]
        strides = tuple(8 * stride for stride in view.strides)
        arrays[name] = np.lib.stride_tricks.as_strided(flat, view.shape, strides)
    q, k = (x / np.sqrt((x**2).sum(-1, keepdims=True) + 1e-6) for x in (arrays["q_NGK"], arrays["k_NGK"]))
    v, decay, beta, state = arrays["v_NGRV"], wide(f, "decay"), wide(f, "beta"), wide(f, "state")
    tokens, _, repeats, columns = v.shape
    out = np.zeros((tokens, decay.shape[1], columns))
    for before, _, part, row in parts(step):
        own = state[row] if before else np.zeros_like(state[row])
        for n in range(part.start, part.stop):
            for h in range(decay.shape[1]):
                g, r = divmod(h, repeats)
                own[h] *= np.exp(decay[n, h])
                own[h] += np.outer(k[n, g], beta[n, h] * (v[n, g, r] - k[n, g] @ own[h]))
                out[n, h] = q[n, g] @ own[h] / np.sqrt(q.shape[-1])
        state[row] = own
    return out, state


@pytest.mark.parametrize(
    ("step", "heads", "sizes", "dtype"),
    [
        (DECODE, (2, 2), (128, 128), "bfloat16"),
        (DECODE, (3, 1), (24, 37), "float32"),
        (DECODE, (1, 3), (8, 5), "float16"),
        (RAGGED, (2, 2), (64, 64), "float32"),
        (RAGGED, (1, 3), (24, 37), "bfloat16"),
        (RAGGED, (2, 1), (7, 3), "float16"),
        pytest.param(FULL, (1, 1), (256, 20), "float32", marks=pytest.mark.slow),
        pytest.param(CHUNKS, (1, 2), (24, 20), "bfloat16", marks=pytest.mark.slow),
        pytest.param(CHUNKS, (2, 1), (128, 16), "bfloat16", marks=pytest.mark.slow),
    ],
)
def test_delta_rule(step: Step, heads: tuple[int, int], sizes: tuple[int, int], dtype: str) -> None:
    f = delta_rule(step, heads, sizes, dtype, decode=step is DECODE)
    check(f, step, *expected_delta_rule(f, step), dtype, IN_CHUNKS if step is CHUNKS else STATE)


@pytest.mark.slow
def test_a_chunk_of_equal_keys() -> None:
    """Each token replaces the value of the key. A series for the inverse would have terms of up to 3e8 that cancel."""
    step: Step = (((3, 64),), 64, 1)
    f = delta_rule(step, (1, 2), (24, 16), "bfloat16", decode=False)
    f.arrays["qkv"][..., 24:48] = f.arrays["qkv"][0, :, 24:48]
    f.arrays["decay"][:], f.arrays["beta"][:] = 0, 1
    check(f, step, *expected_delta_rule(f, step), "bfloat16", IN_CHUNKS)


@pytest.mark.slow
def test_chunks_move_the_bytes_that_the_schedule_counts() -> None:
    """Each operand is read once for the states, and q and k once more for the chunks. The results of chunks are in
    scratch memory, which no schedule counts: two squares, three factors of each token, and one of all."""
    step: Step = (((4, 70), (4, 40)), 110, 2)
    f = delta_rule(step, (1, 2), (24, 20), "bfloat16", decode=False)
    graph = f.graph("out")
    calls = calls_of(graph, graph.groups[0], "sm_90") or ()
    compiled = compile_kernels([call.kernel for call in calls], "sm_90", default_store())
    machine = Emulated(f.started(), max(call.scratch for call in calls))
    runs = [machine.run(call, compiled[call.kernel]).bytes.buffers for call in calls]
    chunks, states = ({each.name: (each.read, each.written) for each in run} for run in runs)
    counted, cost = bytes_by_buffer(graph, graph.groups[0], 44), cost_of(graph, graph.groups[0], 44)
    assert {name: sum(chunks[name]) for name in ("decay", "beta")} == {n: counted[n] for n in ("decay", "beta")}
    operands = ("qkv", "state", "out")
    assert {name: sum(states[name]) for name in operands} == {name: counted[name] for name in operands}
    assert states["state"][1] + states["out"][1] == cost.written
    assert chunks["qkv"] == (2 * 24 * 110 * 2, 0)
    results = (3 + 2) * 2 * 4 * (2 * 32**2 + 3 * 32 + 1)
    assert (chunks[SCRATCH], states[SCRATCH]) == ((0, results), (results, 0))


@pytest.mark.parametrize("op", ["convolution", "delta rule"])
def test_decode_moves_the_bytes_that_the_schedule_counts(op: str) -> None:
    """Every sequence continues, so each state is read and written once."""
    step: Step = (((4, 1), (2, 1), (9, 1), (1, 1)), 4, 4)
    if op == "convolution":
        f = convolution(step, 512, 4, "bfloat16", decode=True, bias=True)
    else:
        f = delta_rule(step, (2, 2), (64, 64), "bfloat16", decode=True)
    graph = f.graph("out")
    machine, cost = f.emulated(graph, "sm_90"), cost_of(graph, graph.groups[0], 10)
    state = machine.read("state")
    assert cost.cache == state.nbytes // ROWS * len(step[0])
    assert f.run.bytes.written == cost.written
    assert f.run.bytes.read == pytest.approx(cost.weights + cost.cache + cost.other, rel=0.03)


def test_softplus_of_small_arguments() -> None:
    """log1p of values from 1e-30 to 1, where 1 + x would be rounded."""
    f = Function()
    x = np.concatenate([np.logspace(-30, 0, 700), -np.logspace(-30, -0.01, 300)]).astype(np.float32)
    given = f.array("x", x, "float32", "value")
    f.node("aten.log1p.default", {"out": (x.shape, "float32")}, self=given)
    found = f.emulated(f.graph("out"), "sm_90").read("out").astype(np.float64)
    assert np.abs(found / np.log1p(x.astype(np.float64)) - 1).max() < 2**-22
