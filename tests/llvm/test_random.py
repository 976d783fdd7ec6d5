"""A few of the random operations that `benchmarks/random_ops.py` goes through by the hundred thousand."""

from __future__ import annotations

import numpy as np
import pytest

from tests.llvm.cases import check, of_models
from tests.llvm.cases.drawn import Wanted


@pytest.mark.parametrize("make", check.FORMS, ids=lambda make: make.__name__)
def test_random_operations(make) -> None:
    """A form of each kind, by the seed of its name."""
    counts = check.Counts()
    check.check_forms(sum(map(ord, make.__name__)), counts, [make], draws=4)
    assert counts.wrong == []
    assert counts.cases.total() == 4


@pytest.mark.parametrize("make", [of_models.linear, of_models.softmax, of_models.routing])
def test_what_is_wrong_is_found(make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of results that are a little off."""
    distance, counts = check.distance, check.Counts()

    def off(found: np.ndarray, wanted: Wanted) -> float:
        return distance((found * 1.01 + 1).astype(found.dtype), wanted)

    monkeypatch.setattr(check, "distance", off)
    check.check_forms(3, counts, [make], draws=4)
    assert len(counts.wrong) == 4
    assert "of the bound" in counts.wrong[0]


@pytest.mark.parametrize(
    ("found", "wanted", "part"),
    [
        (1.0, Wanted(np.ones(1)), 0.0),
        (1 + 2**-22, Wanted(np.ones(1), 4.0, 1.0), 0.5),
        (np.inf, Wanted(np.full(1, 1e39)), 0),
    ],
)
def test_the_bound(found: float, wanted: Wanted, part: float) -> None:
    assert check.distance(np.array([found], np.float32), wanted) == part


@pytest.mark.parametrize("found", [1 + 2**-20, np.nan, np.inf, 0.0])
def test_beyond_the_bound(found: float) -> None:
    with pytest.raises(check.Different):
        check.distance(np.array([found], np.float32), Wanted(np.ones(1), 4.0, 1.0))
