"""The token of a draw, compared with the definition by Python's integers."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest

from bringup.compile.program.program import Draw
from bringup.compile.program.shares import UNIT, nucleus_of, share_of, token_of, uniform_of


def defined(logits: np.ndarray, draw: Draw) -> int:
    """All tokens are sorted, and their weights are summed one after the other."""
    numbers = [float(logit) for logit in logits]
    order = sorted(range(len(numbers)), key=lambda token: (-numbers[token], token))[: draw.top_k or None]
    with np.errstate(over="ignore"):
        scaled = (np.array([numbers[token] for token in order]) - max(numbers)) / draw.temperature
    weights = [int(weight * UNIT) for weight in np.exp(scaled)]

    def first(share: int) -> int:
        total = 0
        for place, weight in enumerate(weights):
            total += weight
            if total > share:
                return place
        raise AssertionError

    left = sum(weights)
    if draw.top_p < 1:
        left = sum(weights[: first(share_of(nucleus_of(draw.top_p), left)) + 1])
    return order[first(share_of(uniform_of(draw.uniform), left))]


def cases() -> Iterator[tuple[np.ndarray, Draw]]:
    random = np.random.default_rng(0)
    for size in (1, 2, 5, 64, 700):
        for spread in (0.0, 0.01, 1.0, 30.0):
            for temperature in (1e-300, 1e-3, 0.3, 1.0, 50.0):
                for top_p in (1e-9, 0.1, 0.9, 0.999, 1.0):
                    logits = random.normal(0, spread, size).astype(np.float32)
                    if random.random() < 0.5:
                        logits = np.round(logits)  # equal ones, 0 and -0
                    if random.random() < 0.3:
                        logits[1:][random.random(size - 1) < 0.5] = -math.inf
                    uniform = float(random.choice([0.0, random.random(), 1 - 2.0**-53]))
                    yield logits, Draw(temperature, top_p, uniform, int(random.choice([0, 0, 1, 2, 40, 5000])))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_token_is_that_of_the_definition(dtype):
    found = [(token_of(logits.astype(dtype), draw), defined(logits, draw)) for logits, draw in cases()]
    assert len(found) == 500
    assert [pair for pair in found if pair[0] != pair[1]] == []
    assert len({token for token, _ in found}) > 50
