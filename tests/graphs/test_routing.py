"""Which experts a token goes to, against sorting by hand."""

from __future__ import annotations

import math

import pytest
import torch

from bringup.graphs.ops.moe_routing import keep_best_groups, top_experts


@pytest.mark.parametrize("count", [1, 3, 8])
@pytest.mark.parametrize("apart", [False, True])
def test_the_best_experts_and_their_scores(apart: bool, count: int) -> None:
    """`by` chooses, the scores weigh: a bias on the choice is not in the weights."""
    torch.manual_seed(0)
    scores = torch.rand(6, 8)
    by = scores + 3 * torch.randn(8) if apart else scores
    chosen, weights = top_experts(scores, count, by if apart else None)
    assert chosen.shape == weights.shape == (6, count)
    for n in range(6):
        best = sorted(range(8), key=lambda e, n=n: -by[n, e].item())[:count]
        assert chosen[n].tolist() == best
        assert weights[n].tolist() == [scores[n, e].item() for e in best]


GROUPS = [(4, 2, 2), (4, 1, 2), (2, 1, 3), (6, 3, 1), (3, 3, 2), (12, 5, 1)]


@pytest.mark.parametrize(("groups", "topk_groups", "best"), GROUPS)
def test_only_experts_of_the_best_groups_stay(groups: int, topk_groups: int, best: int) -> None:
    """Scores below 0, as a bias on sigmoid scores makes them, must not lose to what was left out."""
    torch.manual_seed(groups)
    scores = torch.randn(9, 12) - 2
    masked = keep_best_groups(scores, groups, topk_groups, best)
    size = 12 // groups
    for n, row in enumerate(scores.tolist()):
        parts = [row[g * size : (g + 1) * size] for g in range(groups)]
        worth = [sum(sorted(part)[-best:]) for part in parts]
        stay = sorted(range(groups), key=lambda g, worth=worth: -worth[g])[:topk_groups]
        wanted = [value if e // size in stay else -math.inf for e, value in enumerate(row)]
        assert masked[n].tolist() == pytest.approx(wanted)


def test_groups_that_are_equally_good_are_not_all_chosen() -> None:
    """Scores tie where they saturate; a token still goes to `kept` groups only."""
    masked = keep_best_groups(torch.ones(2, 8), groups=4, topk_groups=2, best=2)
    assert masked.isfinite().sum(1).tolist() == [4, 4]
