"""Recurrent layers on the emulated GPU: sampled on the device, in a batch, and after a sequence has ended."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import bringup
from bringup.compile.gpu.executor import GpuExecutor
from bringup.compile.runtime.kernel_trial import trial_of
from tests.runtime import recurrent

PROMPTS = (
    [(5 * at + 1) % recurrent.VOCAB for at in range(40)],
    [3, 1, 4],
    [(7 * at) % recurrent.VOCAB for at in range(33)],
)
NEW = 6
NEAR = 1e-5  # largest |difference| over largest |reference|


@pytest.fixture(scope="module")
def torch_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recurrent.compiled(tmp_path_factory.mktemp("torch") / "b", "torch")


@pytest.fixture(scope="module", params=[pytest.param("sm_80", marks=pytest.mark.slow), "sm_90"])
def bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(request.param)
    return recurrent.compiled(folder / "b", f"cuda:{request.param}", max_batch_size=2)


@pytest.fixture(scope="module")
def wanted(torch_bundle: Path) -> list[list[int]]:
    session = bringup.load(torch_bundle)
    return [list(session.generate(prompt, max_new_tokens=NEW)) for prompt in PROMPTS]


@pytest.mark.parametrize("executor", ["reference", "emulate"])
def test_requests_that_join_and_leave(bundle: Path, wanted: list[list[int]], executor: str) -> None:
    """Three requests for two rows: the last begins in the row of the one that ends first."""
    batch = bringup.load_batch(bundle, executor)
    found: dict[int, list[int]] = {batch.add(bringup.Request(prompt, max_new_tokens=NEW)): [] for prompt in PROMPTS}
    while batch:
        for event in batch.step():
            found[event.id].append(event.token)
    assert list(found.values()) == wanted


def test_a_sequence_that_goes_on_after_its_tokens(bundle: Path, torch_bundle: Path, wanted: list[list[int]]) -> None:
    """No step was started ahead: it would have changed the states."""
    ours, theirs = bringup.load(bundle, "emulate"), bringup.load(torch_bundle)
    for session in (ours, theirs):
        assert list(session.generate(PROMPTS[0], max_new_tokens=NEW)) == wanted[0]
    assert isinstance(ours.executor, GpuExecutor)
    for token in (wanted[0][-1], 9, 2):
        found, expected = (session.decode(token) for session in (ours, theirs))
        assert np.abs(found - expected).max() <= NEAR * np.abs(expected).max()


@pytest.mark.slow
def test_kernels_have_no_fault(bundle: Path) -> None:
    """Of every entry point, under all observers; bytes as the schedule counts them."""
    rows = trial_of(bundle)
    assert [finding for row in rows for finding in row.seen.findings] == []
    assert max(row.error for row in rows) < NEAR
    for row in rows:
        if row.entry == "decode_2" and row.group in ("causal_conv", "gated_delta_rule"):
            assert row.seen.written == row.cost.written
