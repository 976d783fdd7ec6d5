"""`bringup.testing`: a user's tests, run by a pytest of their own."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

import pytest

from tests.ci.conftest import ROOT, run

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


def test_pytest_finds_the_plugin() -> None:
    points = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["entry-points"]
    assert points["pytest11"] == {"bringup.testing": "bringup.testing"}


@pytest.mark.parametrize("name", ["torch", "transformers", "iree"])
def test_the_plugin_is_light(name: str) -> None:
    done = run([sys.executable, "-c", f"import sys, bringup.testing; assert {name!r} not in sys.modules"])
    assert done.returncode == 0, done.stdout
