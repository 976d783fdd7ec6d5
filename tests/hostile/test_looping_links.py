"""Paths that are symbolic links to themselves: one error in plain words, without the system's number."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from bringup.cli.main import cli

READ = [
    "run loop --tokens 1",
    "run loop/bundle --tokens 1",
    "serve loop",
    "inspect loop",
    "check gpt2 --checkpoint loop",
    "check gpt2 --checkpoint loop --format sarif",
    "check gpt2 --checkpoint dummy --config loop",
    "convert gpt2 --checkpoint loop -o out",
    "init --checkpoint loop -o out",
]
WRITTEN = ["convert gpt2 --checkpoint dummy -o loop", "compile gpt2 --checkpoint dummy -o loop/bundle"]


@pytest.mark.parametrize("words", [*READ, *WRITTEN])
def test_one_error(words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("loop").symlink_to("loop")
    result = CliRunner().invoke(cli, words.split())
    assert result.exit_code in (1, 2), result.output
    assert "its symbolic links form a loop" in result.output
    assert "Errno" not in result.output
    assert [path.name for path in tmp_path.iterdir()] == ["loop"]


def test_a_bundle_names_the_fix(tmp_path: Path) -> None:
    (tmp_path / "b").symlink_to("b")
    result = CliRunner().invoke(cli, ["run", str(tmp_path / "b"), "--tokens", "1"])
    assert f"error[BU603]: `{tmp_path / 'b'}` is not a bundle: its symbolic links form a loop" in result.output
    assert "name the folder that `bringup compile` wrote" in result.output
