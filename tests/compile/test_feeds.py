"""What a verification runs reaches all of a program, or says what it does not reach."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate, pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bringup.compile.parity.feeds import Feed, Run, in_fewer_steps, not_covered, plan_runs
from bringup.compile.program.program import Entry, Interface, StateSpec
from bringup.compile.program.step_inputs import chunks_of, sequence_step


def interface(sizes: list[int], ring: int = 0) -> Interface:
    points = [(f"prefill_{size}", size, False) for size in sizes] + [("decode", 1, True)]
    entries = [
        Entry(name=name, num_tokens=size, num_sequences=1, decode=one, contiguous=True, calls=(), outputs={})
        for name, size, one in points
    ]
    rings = (StateSpec(name="k", shape=(2 * ring, 1), dtype="float32", kind="ring"),)
    return Interface(
        functions=(), entries=tuple(entries), weights=(), states=rings if ring else (), max_blocks=1, all_logits=False,
        block_size=64, num_blocks=2, num_rows=2,
    )  # fmt: skip


@given(
    sizes=st.lists(st.integers(2, 600), min_size=1, max_size=5, unique=True).map(sorted),
    cap=st.integers(1, 2000),
    decode=st.integers(0, 20),
    span=st.integers(1, 2500),
)
def test_every_prefill_that_fits_is_run(sizes: list[int], cap: int, decode: int, span: int) -> None:
    runs = plan_runs(interface(sizes), cap, decode, [span])
    assert all(0 < run.prompt <= run.end <= cap and run.decode >= 0 for run in runs)
    for before, size in pairwise([0, *sizes]):
        reached = any(max(before, 1) < run.prompt <= size for run in runs)  # one token is a step of decode
        assert reached is (before < cap) or (before, cap <= 2) == (0, True)
    assert any(run.prompt > sizes[-1] for run in runs) is (cap > sizes[-1])  # in chunks
    assert span >= cap or any(run.prompt > span for run in runs)


def test_a_usual_program() -> None:
    runs = plan_runs(interface([64, 128]), 200, 16, [40])
    assert runs == [Run(61, 16), Run(125, 4), Run(133, 4)]  # padded; past a block of 64; in two chunks
    assert plan_runs(interface([64]), 200, 16, [100]) == [Run(61, 16), Run(69, 4), Run(103, 4)]
    assert plan_runs(interface([64]), 64, 16, []) == [Run(48, 16)]
    assert plan_runs(interface([32]), 8, 16, []) == [Run(4, 4)]  # a short context


@given(
    sizes=st.lists(st.integers(2, 600), min_size=1, max_size=3, unique=True).map(sorted),
    cap=st.integers(1, 2000),
    ring=st.integers(1, 2000),
)
def test_a_whole_step_is_written_over_the_first_rows_of_a_ring(sizes: list[int], cap: int, ring: int) -> None:
    runs = plan_runs(interface(sizes, ring), cap, 16, [])
    assert all(0 < run.prompt <= run.end <= cap for run in runs)
    assert ring >= cap or any(run.prompt > ring for run in runs)
    if ring + sizes[-1] + 4 <= cap:
        prompt = runs[-1].prompt
        ends = accumulate(taken for taken, _ in chunks_of(prompt, sizes))
        first = next(end for end in ends if end > ring)
        assert runs[-1].decode == 4
        assert any(end == first for end in accumulate([sizes[-1]] * (prompt // sizes[-1])))


def test_entries_of_several_sequences_are_one_note() -> None:
    one = interface([16])
    batched = [replace(entry, name=f"{entry.name}_8", num_sequences=8) for entry in one.entries]
    step = sequence_step(list(range(13)), 0, 16, 40)
    feeds = [Feed(0, entry.name, step, np.zeros((1, 5), np.float32)) for entry in one.entries]
    (note,) = not_covered(replace(one, entries=(*one.entries, *batched)), feeds, [], str)
    assert note.message == "`prefill_16_8`, `decode_8` were not run"


def test_the_shortest_prompt_of_the_first_length() -> None:
    """A prompt of one token is a step of decode."""
    step = sequence_step([1], 0, 1, 40)
    (note,) = not_covered(interface([32]), [Feed(0, "decode", step, np.zeros((1, 5), np.float32))], [], str)
    assert (note.message, note.help) == ("`prefill_32` was not run", "2")


def test_what_is_not_reached_is_said() -> None:
    whole = interface([16, 32])
    step = sequence_step(list(range(13)), 0, 16, 40)
    notes = list(
        not_covered(
            whole,
            [Feed(0, "prefill_16", step, np.zeros((1, 5), np.float32))],
            [12, 13],
            lambda count: f"{count} tokens",
        )
    )
    assert [note.code for note in notes] == ["BU709"] * 3
    assert [note.severity for note in notes] == ["note"] * 3
    assert [note.help for note in notes] == ["17 tokens", "14 tokens", "14 tokens"]
    assert [
        "prefill_32" in notes[0].message,
        "decode" in notes[1].message,
        "sliding window (13)" in notes[2].message,
    ] == [True] * 3


def test_decode_steps_in_fewer_steps() -> None:
    """Those of one run, at most `chunk` at once, with the model's inputs; other steps are unchanged."""

    def feed(run: int, first: int, count: int, decode: bool) -> Feed:
        tokens = range(first, first + count)
        step = {**sequence_step(tokens, first, count, 100, 90), "hidden": np.full((count, 2), first)}
        return Feed(run, "decode" if decode else "prefill_70", step, np.full((1, 3), first), decode)

    counts = [(0, 62), *((first, 1) for first in range(62, 67))]
    feeds = [feed(run, first, count, first > 0) for run in (0, 1) for first, count in counts]
    found = list(in_fewer_steps(feeds, 3))
    assert [(each.run, each.entry, each.first, each.end) for each in found] == [
        (run, entry, first, end)
        for run in (0, 1)
        for entry, first, end in [("prefill_70", 0, 62), ("decode", 62, 65), ("decode", 65, 67)]
    ]
    assert found[0] is feeds[0]
    one = sequence_step(range(62, 65), 62, 3, 100, 90)
    assert {name: found[1].step[name].tolist() for name in one} == {name: array.tolist() for name, array in one.items()}
    assert found[1].step["hidden"].tolist() == [[62, 62], [63, 63], [64, 64]]
    assert found[1].logits.tolist() == [[62] * 3, [63] * 3, [64] * 3]
    assert not found[1].decode
