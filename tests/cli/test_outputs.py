"""An output that cannot be written is reported before the work: here before an input that does not exist."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from bringup.cli.main import COMMANDS, cli
from bringup.compile.job import open_job
from bringup.compile.pipeline import build
from bringup.compile.verify.command import verify
from bringup.diagnostics import BringupError
from bringup.progress import Silent
from tests.cli.conftest import Bringup

NONE = ["gpt2", "--checkpoint", "none"]
LORA = ["lora-none", *NONE]
# Each output: the words of a command, its option, whether it is a file or a folder, and the code of an obstacle.
OUTPUTS = [
    (["run", "none", "--prompt", "x"], "--profile", "file", "BU901"),
    (["run", "none", "--batch", "requests"], "--profile", "file", "BU901"),
    (["compile", *NONE], "-o", "folder", "BU901"),
    (["compile", *NONE, "--emit", "program"], "-o", "file", "BU901"),
    (["compile", *NONE, "--emit", "plan"], "-o", "file", "BU901"),
    (["compile", *NONE], "--dump-dir", "folder", "BU901"),
    (["compile", *NONE], "--report", "file", "BU021"),
    (["verify", *NONE], "--report", "file", "BU021"),
    (["verify", *NONE], "-o", "folder", "BU901"),
    (["convert", *NONE], "-o", "folder", "BU901"),
    (["export", *NONE], "-o", "folder", "BU901"),
    (["lora", "merge", *LORA], "-o", "folder", "BU901"),
    (["lora", "convert", *LORA], "-o", "folder", "BU901"),
    (["lora", "check", *LORA], "-o", "file", "BU021"),
    (["lora", "check", *LORA], "--format", "report", "BU021"),
    (["lock", *NONE], "-o", "file", "BU901"),
    (["init", "--checkpoint", "none"], "-o", "folder", "BU901"),
    (["check", *NONE], "-o", "file", "BU021"),
    (["check", *NONE], "--format", "report", "BU021"),
]
STATUS = {"BU021": 2, "BU901": 3}  # an error of the user, or of the system


def obstacles(kind: str) -> dict[str, str]:
    """Paths that cannot be written, and the reason; a file `file` and a folder `folder` exist."""
    found = {"file/below": "`file` is not a folder", "x" * 300: "file name too long"}
    if kind != "folder":
        found |= {"no/such/folder/x": "no such folder: `no/such/folder`", "folder": "it is a folder"}
    return found


def words_of(words: list[str], option: str, kind: str, path: str) -> list[str]:
    return [*words, option, f"json={path}" if kind == "report" else path]


@pytest.mark.parametrize("output", OUTPUTS, ids=lambda output: f"{' '.join(output[0][:2])} {output[1]}")
def test_a_path_that_cannot_be_written(
    bringup: Bringup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: tuple[list[str], str, str, str]
) -> None:
    words, option, kind, code = output
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("of the user")
    (tmp_path / "folder").mkdir()
    for path, why in obstacles(kind).items():
        result = bringup(*words_of(words, option, kind, path))
        assert result.exit_code == STATUS[code], result.stderr
        message, help, *_ = result.stderr.splitlines()
        assert message.startswith(f"error[{code}]: cannot write "), message
        assert f"`{path}`: " in message
        assert message.replace(f"{tmp_path}/", "").endswith(why), message
        fix = "give the path of a file that can be written" if code == "BU021" else f"choose another path with {option}"
        assert help == f"  = help: {fix}"
        assert (result.stderr.count("error["), result.stdout) == (1, "")
    assert sorted(each.name for each in tmp_path.rglob("*")) == ["file", "folder"]
    assert (tmp_path / "file").read_text() == "of the user"


# Prints the exit code and the first line of each command, run without root's rights over files.
SCRIPT = """
import json, os, sys
from click.testing import CliRunner
from bringup.cli.main import cli
from tests.resources.test_refusals import without_privileges
if not os.geteuid():
    without_privileges()
print(json.dumps([(done.exit_code, done.stderr.splitlines()[0]) for words in json.loads(sys.argv[1])
    for done in [CliRunner().invoke(cli, words)]]))
"""


def test_a_folder_that_is_not_writable(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir()
    (closed / "old").mkdir()
    closed.chmod(0o555)
    lines = [words_of(words, option, kind, str(closed / "x")) for words, option, kind, _ in OUTPUTS]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps(lines)], capture_output=True, text=True, check=True, timeout=300,
        cwd=Path(__file__).parents[2],
    )  # fmt: skip
    for (_, _, _, code), (status, first) in zip(OUTPUTS, json.loads(done.stdout), strict=True):
        assert first.startswith(f"error[{code}]: cannot write "), first
        assert first.endswith(f"`{closed}` is not writable by this user"), first
        assert status == STATUS[code]
    assert [each.name for each in closed.iterdir()] == ["old"]


def test_a_link_to_a_report(bringup: Bringup, tmp_path: Path) -> None:
    """A link stands for its target: one in a folder that does not exist is an obstacle, a device is none."""
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "none" / "x")
    assert "error[BU021]" in bringup("check", *NONE, "--format", f"json={link}").stderr
    assert "error[BU034]" in bringup("check", *NONE, "--format", "json=/dev/null").stdout


def test_weights_are_not_read_for_a_folder_that_exists(bringup: Bringup, tmp_path: Path) -> None:
    lines = [["convert", *NONE], ["export", *NONE], ["lora", "merge", *LORA], ["lora", "convert", *LORA]]
    for words in lines:
        assert "error[BU012]" in bringup(*words, "-o", tmp_path).stderr
    (tmp_path / "bringup.json").write_text("{}")
    for words in lines:
        assert "error[BU011]" in bringup(*words, "-o", tmp_path).stderr


def test_saved_activations(bringup: Bringup, tmp_path: Path) -> None:
    """A file's folder is created; a folder in its place is not replaced."""
    (tmp_path / "x.safetensors").mkdir()
    result = bringup("verify", *NONE, "--save", tmp_path / "x.safetensors")
    assert "error[BU901]" in result.stderr
    assert "it is a folder" in result.stderr
    assert "error[BU034]" in bringup("verify", *NONE, "--save", tmp_path / "new" / "x.safetensors").stderr


def test_outputs_of_the_api(small: Path, tmp_path: Path) -> None:
    """`build` and `verify` check them first too: no stage begins."""
    (tmp_path / "file").write_text("of the user")
    below, job, stages = tmp_path / "file" / "below", open_job("gpt2", str(small)), Stages()
    for wrong in ({"out": below}, {"out": below, "emit": "program"}, {"out": tmp_path / "b", "dump_dir": below}):
        with pytest.raises(BringupError, match=r"BU901.*below`: `.*file` is not a folder"):
            build(job, target="torch", progress=stages, **wrong)
    with pytest.raises(BringupError, match=r"BU901.*below`: `.*file` is not a folder"):
        verify(job, save=below, progress=stages)
    assert stages.begun == []


class Stages(Silent):
    def __init__(self) -> None:
        self.begun: list[str] = []

    def stage(self, name: str) -> Any:
        self.begun.append(name)
        return super().stage(name)


def commands(command: click.Command, name: str) -> Iterator[tuple[str, click.Command]]:
    inner = command.commands if isinstance(command, click.Group) else {}
    if not inner:
        yield name, command
    for word, each in inner.items():
        yield from commands(each, f"{name} {word}")


def test_each_output_is_in_the_table() -> None:
    """The metavariable of an output is a path, and its help text has one of these words."""
    words = ("write", "output folder", "save activations", "format full")
    found: set[tuple[str, str]] = set()
    for word in COMMANDS:
        command = cli.get_command(click.Context(cli), word)
        assert command
        for name, each in commands(command, word):
            for option in each.params:
                help = (getattr(option, "help", None) or "").lower()
                path = any(place in str(option.metavar) for place in ("FILE", "DIR", "PATH"))
                if path and any(word in help for word in words):
                    found |= {(name, spelling) for spelling in option.opts}
    listed = {(" ".join(words[: 2 if words[0] == "lora" else 1]), option) for words, option, _, _ in OUTPUTS}
    short = {"--out": "-o", "--output-file": "-o", "--save": "-o"}
    assert {(name, short.get(option, option)) for name, option in found} == listed
