"""What is kept of a compile: stages as they were told, and findings from wherever they come."""

from __future__ import annotations

from pathlib import Path

import pytest

from bringup.compile.job import Job
from bringup.compile.pipeline import build
from bringup.compile.report.record import Record, Recorder
from bringup.diagnostics import BringupError, Diagnostic, Severity
from bringup.render.html.page import page
from tests.report.conftest import Listener, parity, planned_record

WARNING = Diagnostic(code="BU114", severity=Severity.WARNING, message="one thing", parameter="w")


def test_a_recorder_passes_everything_on():
    listener = Listener()
    recorder = Recorder(listener)
    with recorder.stage("Exporting") as stage:
        stage.advance(0.5)
        recorder.warn(WARNING)
        stage.done("2 functions")
    assert listener.heard == ["Exporting", 0.5, WARNING, "2 functions", "end"]
    assert recorder.warnings == [WARNING]


def test_stages_are_recorded_in_order_and_a_failure_is_marked():
    recorder = Recorder(Listener())
    with recorder.stage("Checking") as stage:
        stage.done("fits")
    with pytest.raises(KeyboardInterrupt), recorder.stage("Exporting"), recorder.stage("Tracing"):
        raise KeyboardInterrupt
    assert [(s.name, s.result, s.failed) for s in recorder.stages] == [
        ("Checking", "fits", False),
        ("Exporting", "", True),
        ("Tracing", "", True),
    ]
    first, outer, inner = recorder.stages
    assert first.start + first.seconds <= outer.start <= inner.start
    assert inner.start + inner.seconds <= outer.start + outer.seconds <= recorder.elapsed()


def test_the_record_of_a_compile(compiled: Record):
    assert {stage.name for stage in compiled.stages} == {"Checking", "Exporting", "Lowering", "Writing"}
    assert compiled.ok
    assert compiled.bundle
    on_disk = {str(p.relative_to(compiled.bundle)): p.stat().st_size for p in compiled.bundle.rglob("*") if p.is_file()}
    assert compiled.files == on_disk
    assert compiled.versions.keys() >= {"bringup", "torch", "numpy"}


def test_each_finding_is_reported_once(small: Job):
    error = Diagnostic(code="BU701", message="another")
    recorder = Recorder(Listener())
    recorder.warn(WARNING)
    found = parity(small)
    found.findings.append(error)
    record = planned_record(small, recorder, error=BringupError(error, WARNING), parity=found)
    assert sorted(finding.code for finding in record.findings) == ["BU114", "BU701"]
    assert not record.ok


def test_without_sizes_where_the_context_is_impossible(small: Job):
    assert planned_record(small, max_seq_len=10**9).sizes is None
    assert planned_record(small).sizes is not None


def test_work_that_was_found_done_is_marked(
    compiled: Record, small: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    assert compiled.bundle
    monkeypatch.setenv("BRINGUP_COMPILE_CACHE", str(compiled.bundle.parent / "compile-cache"))
    recorder = Recorder(Listener())
    build(small, out=tmp_path / "again", target="torch", buckets=(8,), progress=recorder)
    assert 'class="cached"' not in page(compiled)
    assert 'class="cached"' in page(planned_record(small, recorder))
