"""Commands that write several files to a folder of the user: each write fails once, and none of the files stays."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from bringup.cli.main import cli
from bringup.diagnostics import BringupError, fail
from bringup.system.new_files import is_of_writing, new_files
from tests.draft.checkpoints import save
from tests.resources.compiles import names
from tests.resources.faults import Fault, fault

COMMANDS = {
    "compile": ["--target", "schedule", "--dump-dir", "{}/files", "-o", "{}/bundle", "--force"],
    "compile --emit schedule": ["--target", "schedule", "--dump-dir", "{}/files", "-o", "{}/schedule.txt"],
    "init": ["-o", "{}/deep/files"],
    "verify": ["--max-seq-len", "64", "--save", "{}/files"],
}
FOLDER = "/files"


def run(command: str, checkpoint: Path, out: Path) -> int:
    words = [*command.split(), "--checkpoint", str(checkpoint), *(word.format(out) for word in COMMANDS[command])]
    with pytest.raises(SystemExit) as ended:
        cli.main(words)
    return int(ended.value.code or 0)


def of_files(found: Fault) -> list[int]:
    """The numbers of the calls that write to the folder or to its hidden one: the first, the last and one between."""
    numbers = [at for at, call in enumerate(found.calls, 1) if FOLDER in call or "/.files" in call]
    return sorted({numbers[0], numbers[len(numbers) // 2], numbers[-1]})


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_all_files_or_none(command, checkpoints, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    source = save("helium", tmp_path / "helium") if command == "init" else checkpoints[0]
    for name in ("warm", "counted"):  # the first fills the cache
        (tmp_path / name).mkdir()
        with fault(0, errno.ENOSPC) as counting:
            assert run(command, source, tmp_path / name) == 0
    whole = names(next(tmp_path.glob("counted/**/files")))
    assert len(whole) >= 2
    for at in of_files(counting):
        out = tmp_path / f"failed {at}"
        out.mkdir()
        capsys.readouterr()
        with fault(at, errno.ENOSPC) as struck:
            ended = run(command, source, out)
        said = capsys.readouterr().err
        assert (ended, said.count("error[BU902]")) == (3, 1), (struck.struck, said)
        assert ".part" not in said
        assert names(out) == [], struck.struck


def test_an_error_of_another_kind(tmp_path):
    """The files that explain it stay, if `keep` says so; those of an error of writing do not."""

    def write(code: str) -> None:
        with new_files(tmp_path / "x" / "y", lambda error: not is_of_writing(error)) as part:
            (part / "a.txt").write_text("new")
            raise fail(code, f"in {part / 'a.txt'}")

    with pytest.raises(BringupError, match="BU902"):
        write("BU902")
    assert names(tmp_path) == []
    with pytest.raises(BringupError, match=f"BU403.*in {tmp_path}/x/y/a.txt"):
        write("BU403")
    assert names(tmp_path / "x") == ["y"]
    assert (tmp_path / "x" / "y" / "a.txt").read_text() == "new"


def test_files_that_were_there(tmp_path):
    """An error leaves them; a success replaces those of the same name only."""
    (tmp_path / "a.txt").write_text("old")
    (tmp_path / "b.txt").write_text("old")

    def write(stops: bool) -> None:
        with new_files(tmp_path) as part:
            (part / "a.txt").write_text("new")
            if stops:
                raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        write(stops=True)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"a.txt": "old", "b.txt": "old"}
    write(stops=False)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"a.txt": "new", "b.txt": "old"}
    assert not list(tmp_path.parent.glob("*.part"))
