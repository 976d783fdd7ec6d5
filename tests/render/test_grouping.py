"""Groups of names stand for exactly these names; only equal facts are grouped."""

from __future__ import annotations

import re
import tracemalloc
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bringup.grouping import digits, grouped, listed, roots
from tests.check.conftest import small
from tests.check.drafts import GPT2, MIXTRAL
from tests.check.test_faults import checked

STEPS = st.sampled_from(["h", "w", "0", "1", "2", "3", "9", "10", "01", "007", "1x", "", "٣", "99999999999"])
NAMES = st.lists(STEPS, min_size=1, max_size=6).map(".".join)


def expanded(group: str) -> list[str]:
    """Every name of a group, by writing out its braces."""
    parts = re.split(r"\{([^}]*)\}", group)
    choices = [[part] if k % 2 == 0 else numbers(part) for k, part in enumerate(parts)]
    return ["".join(choice) for choice in product(*choices)]


def numbers(text: str) -> list[str]:
    found: list[str] = []
    for run in text.split(","):
        first, _, last = run.partition("..")
        found += map(str, range(int(first), int(last or first) + 1))
    return found


@given(st.sets(NAMES, max_size=40))
def test_groups_stand_for_exactly_their_names(names: set[str]) -> None:
    listed = [name for group in grouped(names) for name in expanded(group)]
    assert len(listed) == len(set(listed))
    assert set(listed) == names


@given(st.sets(st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(0, 5)), max_size=60))
def test_three_numbers(tuples: set[tuple[int, int, int]]) -> None:
    names = {f"h.{a}.experts.{b}.parts.{c}" for a, b, c in tuples}
    listed = [name for group in grouped(names) for name in expanded(group)]
    assert sorted(listed) == sorted(names)


@pytest.mark.parametrize(
    ("left_out", "expected"),
    [
        ([], ["h.{0..11}.e.{0..7}.w"]),
        ([(5, e) for e in range(8)], ["h.{0..4,6..11}.e.{0..7}.w"]),
        ([(layer, 3) for layer in range(12)], ["h.{0..11}.e.{0..2,4..7}.w"]),
        ([(5, 3)], ["h.{0..4,6..11}.e.{0..7}.w", "h.5.e.{0..2,4..7}.w"]),
        ([(0, 0), (11, 0)], ["h.{0,11}.e.{1..7}.w", "h.{1..10}.e.{0..7}.w"]),
    ],
)
def test_an_outlier_stands_alone(left_out: list[tuple[int, int]], expected: list[str]) -> None:
    names = [f"h.{layer}.e.{e}.w" for layer in range(12) for e in range(8) if (layer, e) not in left_out]
    assert sorted(grouped(names)) == sorted(expected)


def test_names_that_could_harm() -> None:
    """Braces, leading zeros, numbers too long to be layers, and ranges too wide to be written out."""
    names = ["a{0}.1.w", "}{.2", "h.00.w", "h.0.w", "h.999999999.w", f"h.{'9' * 5000}.w", "0", "1"]
    listed = grouped(names)
    assert "h.{0,999999999}.w" in listed
    assert set(names) - set(listed) == {"h.0.w", "h.999999999.w"}
    pattern, found = digits("a{0}.1.w")
    assert pattern.format(*found) == "a{0}.1.w"
    assert grouped([".".join(["1"] * 5000)])


def test_a_deep_name_costs_no_memory() -> None:
    """Not the square of its length."""
    deep = ".".join("x" * 5000)
    tracemalloc.start()
    try:
        assert roots(["y.z"], [deep, "y.z"]) == {"y.z": ["y.z"]}
        assert tracemalloc.get_traced_memory()[1] < 20 * len(deep)
    finally:
        tracemalloc.stop()


@given(st.sets(NAMES, min_size=1, max_size=30), st.randoms())
def test_roots_are_whole_sub_trees(everything: set[str], random) -> None:
    chosen = [name for name in sorted(everything) if random.random() < 0.6]
    found = roots(chosen, everything)
    assert sorted(name for below in found.values() for name in below) == chosen
    for root, below in found.items():
        if len(below) > 1:
            assert {n for n in everything if n == root or n.startswith(f"{root}.")} == set(below)


def test_a_layer_of_another_shape_is_reported_separately() -> None:
    """All layers of one shape are one finding, the one of another shape is a second."""
    draft = small(GPT2).copy()
    for layer in range(draft.depth):
        name = draft.name(GPT2.matrix, layer)
        wide = draft.tensors[name].T if layer != 1 else np.zeros((5, 7), np.float32)
        draft.replace(name, wide)
    findings = checked(draft).findings
    concerned = [sorted(n for parameter in f.parameter.split(", ") for n in expanded(parameter)) for f in findings]
    template = draft.parameter(GPT2.matrix, "{}")
    assert sorted(concerned) == sorted(
        [[template.replace("{}", "1")], [template.replace("{}", str(k)) for k in range(draft.depth) if k != 1]]
    )


def test_an_expert_of_another_shape_is_reported_separately() -> None:
    draft = small(MIXTRAL).copy()
    gate = "block_sparse_moe.experts.{}.w1.weight"
    for layer in range(draft.depth):
        for expert in range(4):
            name = draft.name(gate.format(expert), layer)
            odd = (layer, expert) == (1, 2)
            draft.replace(name, np.zeros((5, 7), np.float32) if odd else draft.tensors[name].T)
    findings = checked(draft).findings
    facts = {(f.actual, tuple(sorted(f.sources))) for f in findings}
    odd = draft.name(gate.format(2), 1)
    every = {draft.name(gate.format(e), layer) for layer in range(draft.depth) for e in range(4)}
    assert {sources for _, sources in facts} == {(odd,), tuple(sorted(every - {odd}))}
    for finding in findings:
        groups = [group for group in grouped(finding.sources) if group in finding.message]
        assert sorted(name for group in groups for name in expanded(group)) == sorted(finding.sources)


def test_endless_names_are_cut_in_lists() -> None:
    assert listed(["a" * 40_000, "b"]) == f"`{'a' * 200}… (40,000 characters)`, `b`"
