"""What GitHub Actions is told without a flag."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.cli.conftest import Bringup

ADAPTER = """from bringup.adapters.algebra.expr import S
from bringup.adapters.gpt2 import adapter as published


def adapter(config):
    built = published(config)
    built.rules = [rule for rule in built.rules if "c_attn" not in rule.pattern]
    built["transformer.h.{L}.{m:attn.c_attn|attn.c_proj|mlp.c_fc|mlp.c_proj}.{p:weight|bias}"] = S(
        "h.{L}.{m}.{p}"
    )
    return built
"""


@pytest.fixture
def workspace(tmp_path: Path, broken: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout of somebody's repository, with an adapter in it, while a step runs."""
    folder = tmp_path / "work tree"
    (folder / "ci").mkdir(parents=True)
    (folder / "ci/mine.py").write_text(ADAPTER, "utf-8")
    monkeypatch.chdir(folder / "ci")
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_WORKSPACE", str(folder))
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    return folder


def annotations(text: str) -> list[dict[str, str]]:
    found = [re.match("::(error|warning|notice) (.*?)::(.*)", line) for line in text.splitlines()]
    return [dict(pair.split("=", 1) for pair in each[2].split(",")) for each in found if each]


@pytest.mark.parametrize("command", ["check", "compile", "explain"])
def test_every_command(bringup: Bringup, workspace: Path, broken: Path, tmp_path: Path, command: str) -> None:
    """Text, annotations and a summary; the annotated lines are those of the rules."""
    words = ["explain", "nothing.such"] if command == "explain" else [command]
    result = bringup(*words, "--checkpoint", broken, "--adapter", "mine.py")
    commands = annotations(result.stderr)
    summary = (tmp_path / "summary.md").read_text("utf-8")
    if command == "explain":
        assert (result.exit_code, len(commands)) == (2, 1)
        assert summary.startswith("### ❌ bringup: 1 error")
        return
    assert result.exit_code == 1
    assert "error[BU102]: " in (result.stdout if command == "check" else result.stderr)
    assert [each["title"].split()[0] for each in commands] == ["BU101", "BU105", "BU102"]
    assert "file" not in commands[1]
    for each in (commands[0], commands[2]):
        lines = (workspace / each["file"]).read_text("utf-8").splitlines()
        assert "S(" in lines[int(each["line"]) - 1]
        assert lines[int(each["endLine"]) - 1] == "    )"
    assert summary.count("| error BU") == 3
    assert "`mine.py:8`" in summary


def test_what_is_read_by_programs_is_not_disturbed(bringup: Bringup, workspace: Path, broken: Path) -> None:
    result = bringup("check", "--checkpoint", broken, "--format", "json")
    assert len(json.loads(result.stdout)["findings"]) == len(annotations(result.stderr)) == 3


def test_on_request_they_come_once(bringup: Bringup, workspace: Path, broken: Path, tmp_path: Path) -> None:
    result = bringup("check", "--checkpoint", broken, "--format", "github")
    assert len(annotations(result.stdout)) == 3
    assert result.stderr == ""
    assert (tmp_path / "summary.md").read_text("utf-8").count("| error BU") == 3


def test_a_fit_is_in_the_summary_and_nowhere_else(
    bringup: Bringup, workspace: Path, small: Path, tmp_path: Path
) -> None:
    result = bringup("check", "--checkpoint", small)
    assert (result.exit_code, result.stderr) == (0, "")
    assert (tmp_path / "summary.md").read_text("utf-8") == "### ✅ bringup: " + result.stdout


def test_elsewhere_nothing_is_reported(
    bringup: Bringup, workspace: Path, broken: Path, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.delenv("GITHUB_ACTIONS")
    result = bringup("check", "--checkpoint", broken)
    assert result.stderr == ""
    assert not (tmp_path / "summary.md").exists()
