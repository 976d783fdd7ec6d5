"""The order of equal scores in `topk` while a reference runs, against Python's stable sort."""

from __future__ import annotations

import pytest
import torch

from bringup.compile.parity.equal_scores import FirstOfEqual
from bringup.compile.parity.reference import record


@pytest.mark.parametrize("axis", [0, -1])
@pytest.mark.parametrize("largest", [True, False])
def test_the_first_of_equal_scores_are_selected(axis: int, largest: bool) -> None:
    scores = torch.randint(0, 3, (40, 50), generator=torch.Generator().manual_seed(0)).float()
    own = scores.topk(7, axis, largest).indices
    with FirstOfEqual() as selecting:
        values, taken = scores.topk(7, axis, largest)
    assert torch.equal(values, scores.gather(axis, taken))
    rows, others = scores.movedim(axis, -1).tolist(), own.movedim(axis, -1).tolist()
    found = taken.movedim(axis, -1).tolist()
    for row, some in zip(rows, found, strict=True):
        assert some == sorted(range(len(row)), key=lambda at: -row[at] if largest else row[at])[:7]
    assert selecting.rows == sum({*some} != {*other} for some, other in zip(found, others, strict=True)) > 0


def test_keys_that_a_mask_excludes_are_not_counted() -> None:
    for mask in (float("-inf"), torch.finfo(torch.float32).min):
        with FirstOfEqual() as selecting:
            torch.tensor([[1.0, 2.0] + 70 * [mask]]).topk(5)
        assert selecting.rows == 0


def test_activations_are_recorded_with_the_first_of_equal_scores() -> None:
    class Selecting(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.topk(5).indices.float()

    model = torch.nn.Sequential(Selecting())
    assert model(torch.zeros(1, 72)).tolist() != [[0, 1, 2, 3, 4]]
    assert record(model, lambda: model(torch.zeros(1, 72)))["0"].tolist() == [[0, 1, 2, 3, 4]]
