"""Recurrent kernels read and write the bytes that the schedule counts."""

from __future__ import annotations

import pytest

from bringup.compile.cache.store import default_store
from bringup.compile.kernels.aot import compile_kernels
from bringup.compile.kernels.call import SCRATCH
from bringup.compile.kernels.select.registry import calls_of
from bringup.compile.schedule.costs import bytes_by_buffer, cost_of
from tests.kernels.emulated import Emulated
from tests.kernels.graphs import Function
from tests.kernels.recurrent.functions import ROWS, Step, convolution, delta_rule, state_space

DECODE: Step = (((4, 1), (2, 1), (9, 1), (1, 1)), 4, 4)  # every sequence continues: each state is read and written once
CHUNKS: Step = (((4, 70), (4, 40)), 110, 2)  # five chunks
SIZES = 24, 20  # channels of a key and of a value
DECODES = {
    "convolution": lambda: convolution(DECODE, 512, 4, "bfloat16", decode=True, bias=True),
    "delta rule": lambda: delta_rule(DECODE, (2, 2), (64, 64), "bfloat16", decode=True),
    "state space": lambda: state_space(DECODE, (1, 4), (128, 32), ("bfloat16", "float32"), decode=True),
}


@pytest.mark.parametrize("op", DECODES)
def test_decode(op: str) -> None:
    f = DECODES[op]()
    graph = f.graph("out")
    machine, cost = f.emulated(graph, "sm_90"), cost_of(graph, graph.groups[0], 10)
    state = machine.read("state")
    assert cost.cache == state.nbytes // ROWS * len(DECODE[0])
    assert f.run.bytes.written == cost.written
    assert f.run.bytes.read == pytest.approx(cost.weights + cost.cache + cost.other, rel=0.03)


def in_chunks(f: Function, operands: tuple[str, ...], gates: tuple[str, ...]) -> tuple[dict[str, tuple[int, int]], ...]:
    """The bytes (read, written) of each buffer by the kernel of chunks, and by that of states.

    The first reads `gates` once, the second each of `operands`; what the second writes is what the schedule counts.
    """
    graph = f.graph("out")
    calls = calls_of(graph, graph.groups[0], "sm_90") or ()
    compiled = compile_kernels([call.kernel for call in calls], "sm_90", default_store())
    machine = Emulated(f.started(), max(call.scratch for call in calls))
    runs = [machine.run(call, compiled[call.kernel]).bytes.buffers for call in calls]
    chunks, states = ({each.name: (each.read, each.written) for each in run} for run in runs)
    counted, cost = bytes_by_buffer(graph, graph.groups[0], 44), cost_of(graph, graph.groups[0], 44)
    assert {name: sum(chunks[name]) for name in gates} == {name: counted[name] for name in gates}
    assert {name: sum(states[name]) for name in operands} == {name: counted[name] for name in operands}
    assert states["state"][1] + states["out"][1] == cost.written
    return chunks, states


@pytest.mark.slow
def test_chunks_of_the_delta_rule() -> None:
    """The first kernel reads q and k once more. Its results are in scratch memory, which no schedule counts: two
    squares, three factors of each token, and one of all."""
    f = delta_rule(CHUNKS, (1, 2), SIZES, "bfloat16", decode=False)
    chunks, states = in_chunks(f, ("qkv", "state", "out"), ("decay", "beta"))
    assert chunks["qkv"] == (2 * SIZES[0] * 110 * 2, 0)
    results = (3 + 2) * 2 * 4 * (2 * 32**2 + 3 * 32 + 1)
    assert (chunks[SCRATCH], states[SCRATCH]) == ((0, results), (results, 0))


@pytest.mark.slow
def test_chunks_of_the_state_space() -> None:
    """As those of the delta rule. The results are a square of each key head, and factors of each head."""
    f = state_space(CHUNKS, (1, 3), SIZES, ("bfloat16", "float32"), decode=False)
    chunks, states = in_chunks(f, ("qk", "v", "state", "out"), ("decay",))
    assert chunks["qk"] == (2 * SIZES[0] * 110 * 2, 0)
    results = (3 + 2) * 4 * (32**2 + 3 * (3 * 32 + 1))
    assert (chunks[SCRATCH], states[SCRATCH]) == ((0, results), (results, 0))
