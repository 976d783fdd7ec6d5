"""Do the checks bite in the kernels that bundles have? `python -m tests.kernels.mutations` lists what finds what."""

from __future__ import annotations

import pytest

pytest.importorskip("triton")

from tests.kernels.mutations import planted
from tests.kernels.shipped import pairs

SHARE = 0.75  # of all planted faults; docs/kernels.md has the others, with the reasons


def test_faults_in_a_product_are_found() -> None:
    found = list(planted("linear, float32", "sm_80"))
    assert found
    assert [str(each) for each in found if not each.found] == []


@pytest.mark.slow
@pytest.mark.parametrize("capability", ["sm_80", "sm_90"])
def test_most_faults_are_found(capability: str) -> None:
    """One of 32 in the kernels of every second task: all take long, and docs/kernels.md has their numbers."""
    tasks = [task for task, on in pairs() if on == capability]
    results = [each for task in tasks[capability == "sm_90" :: 2] for each in planted(task, capability, 32)]
    missed = [str(each) for each in results if not each.found]
    assert len(missed) <= (1 - SHARE) * len(results), "\n".join(missed)
