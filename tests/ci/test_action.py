"""The composite action, its steps carried out as GitHub's runner does, in a Python that has no torch."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.ci.conftest import ROOT, run

ACTION: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text("utf-8"))
WORKFLOW: dict[str, Any] = yaml.safe_load((ROOT / "examples" / "ci" / "check.yml").read_text("utf-8"))


def perform(
    inputs: Mapping[str, str], env: Mapping[str, str], folder: Path, *, install: bool = False
) -> tuple[int, str]:
    """Exit code and output of the steps, up to the first that fails: expressions are those that the action uses.

    The package is installed once, by the fixture `installed`: that step takes most of the time.
    """
    given = {name: str(words.get("default", "")) for name, words in ACTION["inputs"].items()} | dict(inputs)
    assert given.keys() == ACTION["inputs"].keys()
    printed = ""

    def filled(text: str) -> str:
        return re.sub(r"\$\{\{ inputs\.(\w+) \}\}", lambda found: given[found[1]], text)

    first, *others = ACTION["runs"]["steps"]
    assert first["name"] == "Install"
    for step in (first, *others) if install else others:
        if "if" in step:
            name = re.fullmatch(r"inputs\.(\w+) != ''", step["if"])
            assert name, "the one form of condition that is used"
            if not given[name[1]]:
                continue
        assert step["shell"] == "bash"
        words = {key: filled(value) for key, value in step.get("env", {}).items()}
        done = run(["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", filled(step["run"])],
                   env={**env, **words}, cwd=folder)  # fmt: skip
        printed += done.stdout
        if done.returncode:
            return done.returncode, printed
    return 0, printed


@pytest.fixture(scope="module")
def installed(core: dict[str, str], good: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[int, str, Path]:
    folder = tmp_path_factory.mktemp("work")
    return *perform({"checkpoint": str(good), "args": "--tp 3"}, core, folder, install=True), folder


@pytest.mark.slow
def test_a_checkpoint_that_fits(installed: tuple[int, str, Path], core: dict[str, str]) -> None:
    code, printed, folder = installed
    assert code == 0, printed
    assert json.loads((folder / "bringup.sarif").read_text())["runs"][0]["results"] == []
    without = run(["python3", "-c", "import torch"], env=core)
    assert "ModuleNotFoundError" in without.stdout


@pytest.mark.slow
def test_a_checkpoint_that_does_not(
    installed: tuple[int, str, Path], core: dict[str, str], bad: Path, tmp_path: Path
) -> None:
    code, printed = perform({"checkpoint": str(bad)}, core, tmp_path)
    assert code == 1
    assert "::error" in printed
    assert "BU101" in printed
    results = json.loads((tmp_path / "bringup.sarif").read_text())["runs"][0]["results"]
    assert [each["ruleId"] for each in results] == ["BU101"]


@pytest.mark.slow
def test_a_lock_that_has_drifted(
    installed: tuple[int, str, Path], core: dict[str, str], good: Path, bad: Path, tmp_path: Path
) -> None:
    lock = tmp_path / "plan.lock"
    assert run(["bringup", "lock", "--checkpoint", str(good), "-o", str(lock)], env=core).returncode == 0
    given = {"checkpoint": str(good), "lock": str(lock)}
    assert perform(given, core, tmp_path)[0] == 0
    lock.write_text(lock.read_text().replace("input_layernorm", "input_norm"))
    code, printed = perform(given, core, tmp_path)
    assert code == 1
    assert "BU141" in printed


def test_the_workflow_names_inputs_of_the_action() -> None:
    uses = [step for step in WORKFLOW["jobs"]["shapes"]["steps"] if "bringup@" in step["uses"]]
    assert [step["with"].keys() <= ACTION["inputs"].keys() for step in uses] == [True]


@pytest.mark.slow
def test_commands_without_torch(
    installed: tuple[int, str, Path], core: dict[str, str], good: Path, tmp_path: Path
) -> None:
    """The commands that need no more than numpy, from the installed package."""
    for words in (
        ["inspect", str(good)], ["check", "--checkpoint", str(good), "--values"],
        ["explain", "model.norm.weight", "--checkpoint", str(good)], ["models"],
        ["convert", "--checkpoint", str(good), "-o", "arrays"],
    ):  # fmt: skip
        done = run(["bringup", *words], env=core, cwd=tmp_path)
        assert done.returncode == 0, done.stdout
