"""A factor on an operation: rounding averages out over many numbers, and one that is wrong by 1 % does not."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from bringup.compile.bisect.eager import Eager
from bringup.compile.bisect.scaling import STEP, Listing, Scaling, staged
from bringup.compile.parity.scale import NONE, ROUNDOFF, scale_along, scale_of, sigmas
from bringup.compile.program.step_inputs import sequence_step
from tests.compile.planted import job, saved

DTYPES = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16}
WRONG = {"bfloat16": 1.01, "float16": 1.001}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", [32, 64, 1000])
def test_numbers_rounded_twice_agree_and_a_factor_departs(dtype: str, count: int) -> None:
    random, kind = np.random.default_rng(count), DTYPES[dtype]
    missed = 0
    for _ in range(500):
        exact = random.normal(size=count)
        # Two programs that round the same number, one of them after other sums: by as much as a rounding again.
        one = exact.astype(kind)
        other = (exact * (1 + random.normal(0, ROUNDOFF[dtype], count))).astype(kind)
        assert scale_of(other, one, dtype).excess <= 1
        wrong = (exact * WRONG[dtype]).astype(kind)
        missed += scale_of(wrong, one, dtype).excess <= 1
    assert missed <= (5 if count > 32 else 250)


@pytest.mark.parametrize("given", [np.zeros(64), np.full(64, np.nan), np.ones(8), np.ones(0)])
def test_numbers_that_give_no_statistic(given: np.ndarray) -> None:
    assert scale_of(given, given, "bfloat16") == NONE


def test_masked_numbers_do_not_count() -> None:
    wanted = np.linspace(1, 2, 100)
    masked = np.where(np.arange(100) % 2, wanted, -np.inf)
    assert scale_of(np.where(np.isfinite(masked), masked * 1.02, -np.inf), masked, "bfloat16").excess > 1


def test_the_factor_is_that_of_least_squares() -> None:
    """numpy's `lstsq` on the same numbers; the error of a factor by sums over groups, written out."""
    random = np.random.default_rng(0)
    direction = random.normal(size=(40, 30))
    gap = 0.25 * direction + random.normal(size=direction.shape)
    noise = -0.1 * direction
    found = scale_along(gap, direction, noise, "float16")
    (wanted,) = np.linalg.lstsq(direction.reshape(-1, 1), gap.ravel())[0]
    assert found.factor == pytest.approx(wanted)
    left = [float(d @ (g - wanted * d)) for d, g in zip(direction, gap, strict=True)]
    error = np.sqrt(np.sum(np.square(left)) * 40 / 39) / np.sum(direction**2)
    assert found.error == pytest.approx(error)
    assert found.explained == pytest.approx(2.0**-12 + sigmas(39) * error + 2 * 0.1)


@pytest.mark.parametrize(("shape", "size"), [((0, 30), 1.0), ((7, 30), 1.0), ((40, 30), 0.0)])
def test_no_factor_without_rows(shape: tuple[int, int], size: float) -> None:
    """No rows remain if all logits are 0."""
    rows = np.full(shape, size)
    assert scale_along(rows, rows, rows, "bfloat16") is NONE


@pytest.mark.parametrize(("degrees", "wanted"), [(19, 5.1), (39, 4.5), (10**6, 4.0)])
def test_a_scatter_of_few_rows_is_known_less_well(degrees: int, wanted: float) -> None:
    """Student's distribution is sampled: the share beyond is that of 4 sigma, 6e-5, or near it."""
    assert sigmas(degrees) == pytest.approx(wanted, rel=0.05)
    draws = np.random.default_rng(degrees).standard_t(degrees, 1_000_000)
    assert np.mean(np.abs(draws) > sigmas(degrees)) < 2e-4


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Eager:
    return Eager(job(saved(tmp_path_factory.mktemp("scales") / "model")), 40)


def test_the_operations_of_a_graph(graph: Eager) -> None:
    """Of a gated MLP the down projection alone is listed: gate, up and their product are read by linear ones."""
    listing = Listing()
    before = graph.copy_of_states()
    with staged(graph, listing):
        graph(sequence_step([1, 2, 3], 0, 3, 40))
    graph.restore(before)
    stages = [[op.target for op in listing.distinct if op.stage == stage] for stage in range(4)]
    assert stages[0][-1] == "aten.index.Tensor"
    assert stages[1] == stages[2]
    assert stages[1].count("bringup.rms_norm.default") == 2
    assert stages[1].count("aten.add.Tensor") == 2
    assert "aten.mul.Tensor" not in stages[1]
    assert stages[1].count("bringup.linear.default") == 6  # q, k, v; o; gate, which silu reads; down
    assert stages[3] == ["bringup.linear.default"]  # which alone reads the norm


def test_the_direction_of_the_last_operation_is_the_logits(graph: Eager) -> None:
    step = sequence_step([5, 6, 7, 8], 0, 4, 40)
    right = graph(step).numpy()
    listing = Listing()
    with staged(graph, listing):
        graph(step)
    head = listing.distinct[-1]
    with staged(graph, Scaling([head.stage], head.index)):
        larger = graph(step).numpy()
    np.testing.assert_allclose((larger - right) / STEP, right, atol=2e-3 * np.abs(right).max())
    with staged(graph, Scaling([], -1)):
        np.testing.assert_array_equal(graph(step).numpy(), right)


def test_a_factor_leaves_the_states_of_other_steps(graph: Eager, tmp_path: Path) -> None:
    """Nothing of a run with a factor is left once the graph is reset."""
    step = sequence_step([5, 6, 7, 8], 0, 4, 40)
    graph.reset()
    right = graph(step).numpy()
    with staged(graph, Scaling([1], 3)):
        graph(step)
    graph.reset()
    np.testing.assert_array_equal(graph(step).numpy(), right)
