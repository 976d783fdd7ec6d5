"""The memory plan against a brute-force look at every pair of temporaries."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from bringup.compile.schedule.memory import ALIGNMENT, Life, peak, planned


@st.composite
def some_lives(draw: st.DrawFn) -> list[Life]:
    spans = draw(st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 20), st.integers(0, 8)), max_size=30))
    return [Life(f"t{number}", size, first, first + more) for number, (size, first, more) in enumerate(spans)]


def rounded(nbytes: int) -> int:
    return max(1, -(-nbytes // ALIGNMENT)) * ALIGNMENT


@given(some_lives())
def test_what_is_alive_at_a_time_never_overlaps(lives: list[Life]) -> None:
    plan = planned(lives)
    assert set(plan.offsets) == {life.name for life in lives}
    for one, other in combinations(lives, 2):
        together = one.first <= other.last and other.first <= one.last
        start, at = plan.offsets[one.name], plan.offsets[other.name]
        apart = start + one.nbytes <= at or at + other.nbytes <= start
        assert apart or not together, (one, other)
    for life in lives:
        assert plan.offsets[life.name] % ALIGNMENT == 0
        assert plan.offsets[life.name] + life.nbytes <= plan.nbytes


@given(some_lives())
def test_the_arena_is_between_the_peak_and_the_sum(lives: list[Life]) -> None:
    alive = [sum(rounded(x.nbytes) for x in lives if x.first <= at <= x.last) for at in range(40)]
    assert peak(lives) == max(alive)
    assert max(alive) <= planned(lives).nbytes <= sum(rounded(life.nbytes) for life in lives)
    assert planned(lives, reuse=False).nbytes == sum(rounded(life.nbytes) for life in lives)


def test_a_chain_takes_the_memory_of_two() -> None:
    chain = [Life(f"t{at}", 1000, at, at + 1) for at in range(50)]
    assert planned(chain).nbytes == 2 * 1024
