"""`--report FILE.html` on the command line."""

from __future__ import annotations

import shutil
from pathlib import Path
from unittest.mock import Mock

import pytest
from click.testing import CliRunner, Result

from bringup.cli.main import cli
from bringup.compile.job import Job
from bringup.compile.report.record import Record
from tests.cli.headers import gpt2_config, gpt2_shapes, write_checkpoint
from tests.report.conftest import SMALL


def bringup(*words: str | Path) -> Result:
    return CliRunner().invoke(cli, [str(word) for word in words])


def test_a_check_that_fails_is_reported(tmp_path: Path):
    shapes = gpt2_shapes(**SMALL)
    shapes["h.0.mlp.c_fc.weight"] = shapes["h.0.mlp.c_fc.weight"][::-1]
    source, file = write_checkpoint(tmp_path / "broken", shapes, gpt2_config(**SMALL)), tmp_path / "report.html"
    done = bringup("compile", "--checkpoint", source, "-o", tmp_path / "b", "--report", file)
    assert done.exit_code == 1
    assert not (tmp_path / "b").exists()
    page = file.read_text("utf-8")
    assert '<strong class="outcome bad">failed</strong>' in page
    assert "BU102" in page
    assert 'class="failed"' in page, "the stage that failed is marked"


@pytest.mark.parametrize("phase", [["--dry-run"], ["--emit", "plan"]])
def test_what_compiles_nothing_is_reported_too(phase: list[str], small: Job, tmp_path: Path):
    file = tmp_path / "report.html"
    done = bringup("compile", "--checkpoint", small.checkpoint.source, *phase, "--report", file)
    assert done.exit_code == 0
    assert f"report: {file}" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
    assert "Where each parameter came from" in file.read_text("utf-8")


@pytest.mark.parametrize("path", ["nowhere/report.html", "."])
def test_a_page_that_cannot_stand_there_is_refused_first(path: str, small: Job, tmp_path: Path):
    out = tmp_path / "b"
    done = bringup("compile", "--checkpoint", small.checkpoint.source, "-o", out, "--report", tmp_path / path)
    assert done.exit_code == 2
    assert not out.exists()


def test_a_page_that_fails_leaves_the_old_one(small: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file = tmp_path / "report.html"
    file.write_text("the old one")
    monkeypatch.setattr(Path, "write_text", Mock(side_effect=OSError(28, "No space left on device")))
    done = bringup("compile", "--checkpoint", small.checkpoint.source, "--dry-run", "--report", file)
    assert done.exit_code == 3, done.output
    assert file.read_bytes() == b"the old one"
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


@pytest.mark.slow
def test_a_verification_is_reported_with_its_errors(compiled: Record, tmp_path: Path):
    file, source = tmp_path / "report.html", compiled.job.checkpoint.source
    shutil.copytree(compiled.bundle or "", tmp_path / "b")  # which gets a parity.json
    done = bringup("verify", tmp_path / "b", "--report", file)
    assert done.exit_code == 0, done.output
    bundle = file.read_text("utf-8")
    assert "agrees" in bundle
    assert bundle.count("<circle") > 3 * 8, "a dot a module"
    assert "transformer.h.2.mlp.c_proj" in bundle
    assert "16 tokens" in bundle
    done = bringup("verify", "gpt2", "--checkpoint", source, "--report", file)
    assert done.exit_code == 0, done.output
    assert all(stage in file.read_text("utf-8") for stage in ("Exporting", "Comparing"))
