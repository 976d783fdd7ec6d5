"""`bringup.testing`: a user's tests, run by a pytest of their own."""

from __future__ import annotations

import json
import shutil
import sys
import tomllib
from pathlib import Path

import pytest

from bringup.testing import assert_same_logits, assert_shapes
from tests.ci.conftest import ROOT, run
from tests.render.test_parity import parity

TESTS = """
import numpy as np
from bringup.testing import assert_fits, assert_shapes, check_fits

def test_fixture(bringup_check):
    assert bringup_check(checkpoint={source!r}).counts["parameters"] == 21

def test_function():
    assert_fits(checkpoint={source!r})

def test_report():
    assert [finding.code for finding in check_fits(checkpoint={source!r}).findings] == []

def test_shapes():
    assert_shapes({{"model.norm.weight": np.zeros(48)}}, {source!r})
"""


def results(source: Path, folder: Path) -> str:
    (folder / "test_mine.py").write_text(TESTS.format(source=str(source)))
    words = [sys.executable, "-m", "pytest", "-p", "bringup.testing", "-q", "-p", "no:cacheprovider", "test_mine.py"]
    return run(words, cwd=folder).stdout


def test_a_checkpoint_that_fits(good: Path, tmp_path: Path) -> None:
    printed = results(good, tmp_path)
    assert "1 failed, 3 passed" in printed, printed  # the dict of arrays has one of 21
    assert "model.layers.0.input_layernorm.weight: expected (48,), found None" in printed


def test_a_checkpoint_that_does_not(bad: Path, tmp_path: Path) -> None:
    printed = results(bad, tmp_path)
    assert "[BU101]" in printed
    assert "help: " in printed
    assert "4 failed" in printed


def test_an_unknown_architecture_is_a_finding_without_a_trace(good: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(good, tmp_path / "new")
    other = json.loads((good / "config.json").read_text("utf-8")) | {"architectures": ["NewForCausalLM"]}
    (folder / "config.json").write_text(json.dumps(other), "utf-8")
    with pytest.raises(pytest.fail.Exception, match=r"1 finding\n\[BU125\].*NewForCausalLM") as caught:
        assert_shapes({}, folder)
    assert not caught.value.pytrace


def test_logits_that_differ_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bringup.compile.verify.command.verify", lambda *_: parity(0.5))
    with pytest.raises(pytest.fail.Exception, match=r"prefill_64  5\.0e-01 of max(.|\n)*mine\.py: departs"):
        assert_same_logits("mine.py", "folder")


def test_pytest_finds_the_plugin() -> None:
    points = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["entry-points"]
    assert points["pytest11"] == {"bringup.testing": "bringup.testing"}


@pytest.mark.parametrize("name", ["torch", "transformers", "iree"])
def test_the_plugin_is_light(name: str) -> None:
    done = run([sys.executable, "-c", f"import sys, bringup.testing; assert {name!r} not in sys.modules"])
    assert done.returncode == 0, done.stdout
