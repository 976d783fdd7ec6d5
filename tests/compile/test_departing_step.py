"""The step that `verify` attributes a difference to: of the program, or of the graph in float32."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from bringup.compile.parity.parity import Difference, Parity
from bringup.compile.verify.attribution import Proof
from bringup.compile.verify.evidence import GRAPH

STEPS = ("prefill", "decode", "decode")


def difference(phase: str, excess: float) -> Difference:
    return Difference(phase=phase, rows=1, relative=excess, excess=excess, wrong=0, exempt=0)


def step_of(program: list[float], graph: list[float], phases: dict[str, float]) -> int:
    """The number of the step; `program` and `graph` are the errors in each step, divided by their bounds."""
    feeds = [SimpleNamespace(entry=entry, number=number) for number, entry in enumerate(STEPS)]
    evidence = SimpleNamespace(
        exact=lambda index: difference(GRAPH, graph[index]),
        of=lambda name, feeds: difference(name, program[feeds[0].number]),
    )
    proof: Any = SimpleNamespace(feeds=feeds, evidence=evidence)
    differences = [difference(phase, excess) for phase, excess in phases.items()]
    parity = Parity(
        model="m", target="torch", dtype="bfloat16", reference="transformers", tolerance=1.0, differences=differences
    )
    found: Any = Proof._departing(proof, parity)
    return found.number


@pytest.mark.parametrize(
    ("program", "graph", "phases", "step"),
    [
        ([0.5, 0.5, 2.0], [0.1, 0.2, 0.1], {"prefill": 0.5, "decode": 2.0}, 2),
        ([3.0, 0.5, 2.0], [0.1, 0.2, 0.1], {"prefill": 3.0, "decode": 2.0}, 0),
        ([3.0, 2.0, 2.0], [0.1, 0.2, 0.1], {GRAPH: 0.2, "prefill": 0.5, "decode": 2.0}, 1),  # of a phase that differs
        ([3.0, 2.0, 2.0], [0.5, 4.0, 5.0], {GRAPH: 5.0, "prefill": 3.0, "decode": 2.0}, 1),  # the graph's own error
        ([0.5, 0.9, 0.7], [0.1, 0.2, 0.1], {"prefill": 0.5, "decode": 1.5}, 1),  # only together out of tolerance
        ([0.5, 0.9, 0.7], [0.1, 0.2, 0.6], {GRAPH: 1.5, "prefill": 0.5, "decode": 0.9}, 2),
    ],
)
def test_the_first_step_that_differs(
    program: list[float], graph: list[float], phases: dict[str, float], step: int
) -> None:
    assert step_of(program, graph, phases) == step


def test_the_first_step_stands_for_a_phase_without_steps() -> None:
    assert step_of([9.0, 9.0, 9.0], [9.0, 9.0, 9.0], {"prefill_64": 2.0}) == 0
