"""Choices of `topk`: which rows replay recorded ones, and which other choices rounding cannot exclude."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from bringup.compile.bisect.choices import Choice, Choosing, Plan, Swap, moved, swaps
from bringup.graphs.ops.topk_keys import selected_positions, top_keys

FALLING = torch.tensor([[4.0, 3.0, 2.0, 1.0], [8.0, 7.0, 6.0, 5.0]])
LAST = torch.tensor([[3, 2], [3, 2]])  # which `topk` of FALLING does not select


def run(scores: torch.Tensor, plan: Plan | None = None, times: int = 1) -> tuple[Choosing, list[torch.Tensor]]:
    """The recorder, and the values and indices of the last of `times` choices of two."""
    with Choosing(plan) as choosing:
        for _ in range(times):
            found = list(torch.topk(scores, 2))
    return choosing, found


def test_choices_are_recorded() -> None:
    choosing, (values, taken) = run(FALLING, times=2)
    assert taken.tolist() == [[0, 1], [0, 1]]
    assert values.tolist() == [[4, 3], [8, 7]]
    assert [each.taken.tolist() for each in choosing.choices] == [taken.tolist()] * 2
    assert [each.scores.tolist() for each in choosing.choices] == [FALLING.tolist()] * 2


@pytest.mark.parametrize(
    ("held", "taken"), [([1, 0], [[3, 2], [0, 1]]), ([0, 1], [[0, 1], [3, 2]]), ([1, 1], LAST.tolist())]
)
def test_a_row_replays_the_choices_that_it_holds(held: list[int], taken: list[list[int]]) -> None:
    """The values are the scores at the selected indices."""
    choosing, found = run(FALLING, Plan((Choice(FALLING, LAST, -1),), torch.tensor(held)))
    assert found[1].tolist() == taken
    assert found[0].tolist() == np.take_along_axis(FALLING.numpy(), np.array(taken), -1).tolist()
    assert choosing.choices[0].taken.tolist() == taken


def test_a_choice_with_other_rows_is_replayed_for_all_of_them() -> None:
    plan = Plan((Choice(FALLING, LAST, -1),), torch.tensor([0, 0, 0]))
    assert run(FALLING, plan)[1][1].tolist() == LAST.tolist()


def test_a_swap_changes_one_choice_of_a_row() -> None:
    """The row computes the choices after it; the plan before is unchanged."""
    recorded = run(FALLING, times=3)[0].choices
    plan = Plan.of(recorded, 2)
    other = plan.swapped(1, {1: Swap(0, out=0, into=3)})
    assert [each.taken.tolist() for each in other.choices] == [[[0, 1], [0, 1]], [[0, 1], [3, 1]], [[0, 1], [0, 1]]]
    assert other.held.tolist() == [3, 2]
    assert plan.held.tolist() == [3, 3]
    assert plan.choices[1].taken.tolist() == [[0, 1], [0, 1]]


@pytest.mark.parametrize("within", [0.0, 0.5, 1.0, 2.5])
@pytest.mark.parametrize("seed", range(4))
def test_swaps_are_those_that_rounding_cannot_exclude(within: float, seed: int) -> None:
    """After a swap, no score that is left exceeds a selected one by more than `within`. Every swap is tried."""
    random = np.random.default_rng(seed)
    scores = torch.from_numpy(random.integers(0, 8, (2, 5)).astype(np.float32))
    scores[1, random.integers(5)] = -torch.inf
    taken = torch.topk(scores, 2)[1]
    row, selected = scores[1].tolist(), set(taken[1].tolist())
    expected = set()
    for out in selected:
        for into in set(range(5)) - selected:
            after = selected - {out} | {into}
            rest = [row[each] for each in range(5) if each not in after]
            if np.isfinite(row[into]) and max(rest) - min(row[each] for each in after) <= within:
                expected.add((0, out, into))
    found = swaps(Choice(scores, taken, -1), 1, within)
    assert {(each.place, each.out, each.into) for each in found} == expected


def test_the_rounding_of_scores_is_their_rms() -> None:
    """A choice that selects everything, or has fewer rows, has none."""
    low = Choice(FALLING + torch.tensor([[0.5], [0.25]]), LAST, -1)
    exact = Choice(FALLING, LAST, -1)
    (found,) = moved([low], [exact], 2)
    assert found is not None
    assert found.tolist() == [0.5, 0.25]
    everything = Choice(FALLING, torch.arange(4).expand(2, 4), -1)
    assert moved([everything, low], [everything, exact], 3) == [None, None]
    assert moved([everything], [everything], 2) == [None]


def test_a_choice_of_keys_is_replayed() -> None:
    """The mask is that of the recorded keys, even if their scores are not the highest."""
    scores, positions = torch.tensor([[9.0, 3.0, 2.0, 1.0, 5.0]]).repeat(2, 1), torch.tensor([3, 4])
    with Choosing() as choosing:
        computed = top_keys(scores, positions, 2)
    visible = torch.arange(5) <= positions[:, None]
    assert (computed & visible).tolist() == (top_keys(scores, positions, 2) & visible).tolist()
    plan = Plan.of(choosing.choices, 2).swapped(0, {0: Swap(0, out=0, into=3), 1: Swap(0, out=4, into=1)})
    with Choosing(plan) as other:
        replayed = top_keys(scores, positions, 2)
        found = selected_positions(replayed, positions, 3)
    assert replayed.tolist() == [[False, True, False, True, False], [True, True, False, False, False]]
    assert found.tolist() == selected_positions(replayed, positions, 3).tolist() == [[1, 3, 5], [0, 1, 5]]
    assert len(other.choices) == 1
