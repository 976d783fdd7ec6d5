"""Do the checks bite? Faults are planted in PTX; `python -m tests.ptx.mutations` lists what finds each."""

from __future__ import annotations

import pytest

pytest.importorskip("triton")

from bringup.compile import ptx
from tests.ptx.cases import compiled
from tests.ptx.mutations import PAIRS, findings, mutants, survey

SHARE = 0.75  # of all planted faults; the others change nothing that can be seen (see docs/schedule-and-kernels.md)


def test_removed_barriers_of_a_norm_are_races():
    planted = list(mutants(compiled("rms_norm", 80).text))
    assert planted
    assert all(findings("rms_norm", 80, mutant.text) for mutant in planted)


@pytest.mark.slow
def test_most_planted_faults_are_found():
    results = list(survey(PAIRS))
    missed = [
        f"{name} sm_{target} line {mutant.line}: {mutant.change}"
        for name, target, mutant, found in results
        if not found
    ]
    assert len(missed) <= (1 - SHARE) * len(results), "\n".join(missed)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "target"), [("decode", 80), ("grid_barrier", 80), ("grid_barrier", 90)])
def test_every_weaker_memory_order_is_found(name, target):
    planted = [mutant for mutant in mutants(compiled(name, target).text) if mutant.kind == "order"]
    assert planted
    assert [mutant.change for mutant in planted if not findings(name, target, mutant.text)] == []


def test_a_register_read_before_its_wgmma_was_waited_for():
    text = compiled("flash", 90).text
    assert ptx.Program(text).early_reads == ()
    planted = [mutant for mutant in mutants(text) if mutant.change.startswith("wgmma.wait_group")]
    assert planted
    for mutant in planted:
        (first, *_) = ptx.Program(mutant.text).early_reads
        assert first.startswith("read of a register before its wgmma was waited for: kernels.py:")
