"""A few of the random operations that `benchmarks/random_ops.py` goes through by the thousand."""

from __future__ import annotations

import numpy as np
import pytest

from tests.llvm import random_cases


@pytest.mark.parametrize("seed", range(40))
def test_random_operations(seed: int) -> None:
    random_cases.check(seed)


def test_what_is_wrong_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of results that are a little off."""
    run = random_cases.run

    class Off:
        def __init__(self, memory: object) -> None:
            self.memory = memory

        def read(self, name: str) -> np.ndarray:
            return (self.memory.read(name) * 1.01 + 0.01).astype(self.memory.read(name).dtype)

    monkeypatch.setattr(random_cases, "DRAWN", {random_cases.linear: 1.0})
    random_cases._chances.cache_clear()
    monkeypatch.setattr(random_cases, "run", lambda *given: Off(run(*given)))
    with pytest.raises(random_cases.Different, match="linear"):
        random_cases.check(3)
    random_cases._chances.cache_clear()
