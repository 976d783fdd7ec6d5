"""`check --fix` and the files it edits: line ends, encodings, places, rights."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from bringup.cli import fix
from bringup.compile.fix.pyfile import EditConflict, PyFile
from bringup.diagnostics import Fix
from tests.cli.adapters import GPT2, gpt2_checkpoint
from tests.cli.conftest import Bringup
from tests.cli.test_user_code import MODEL, ODD_PLACES

RIGHT, WRONG = 'S("h.{L}.{n}.{p}")', 'S("h.{L}.x{n}.{p}")'
COMMENTED = GPT2.replace(RIGHT, f"{RIGHT}  # „Größe“ 漢字 \t {{x}}")
BYTES = {
    "as it is": GPT2.encode(),
    "CRLF": GPT2.replace("\n", "\r\n").encode(),
    "mixed ends": GPT2.replace("\n", "\r\n", 9).encode(),
    "no end": GPT2.rstrip("\n").encode(),
    "unicode behind it": COMMENTED.encode(),
    "unicode before it": COMMENTED.replace("    gpt2[", '    "日本語 é"; gpt2[').encode(),
    "a byte order mark": b"\xef\xbb\xbf" + GPT2.encode(),
    "latin-1": b"# coding: latin-1\n# caf\xe9\n" + GPT2.encode(),
    "tabs and form feeds": GPT2.replace("\n    ", "\n\t").replace("\ndef adapter", "\n\x0cdef adapter").encode(),
}  # fmt: skip


@pytest.mark.parametrize("kind", BYTES)
def test_all_but_the_edit_stays(bringup: Bringup, small: Path, tmp_path: Path, kind: str) -> None:
    file = tmp_path / "mine.py"
    file.write_bytes(BYTES[kind].replace(RIGHT.encode(), WRONG.encode()))
    result = bringup("check", "--checkpoint", small, "--adapter", file, "--fix")
    assert (result.exit_code, result.stderr) == (0, "fixed 2 errors\n"), result.output
    assert file.read_bytes() == BYTES[kind]


def broken(file: Path) -> Path:
    file.write_text(GPT2.replace(RIGHT, WRONG))
    return file


def test_mode_and_link_stay(bringup: Bringup, small: Path, tmp_path: Path) -> None:
    file, link = broken(tmp_path / "mine.py"), tmp_path / "link.py"
    file.chmod(0o640)
    link.symlink_to(file)
    assert bringup("check", "--checkpoint", small, "--adapter", link, "--fix").exit_code == 0
    assert link.is_symlink()
    assert file.read_text() == GPT2
    assert file.stat().st_mode & 0o777 == 0o640


def test_a_model_file(bringup: Bringup, small: Path, tmp_path: Path) -> None:
    file = tmp_path / "my_model.py"
    rules = GPT2.partition("def adapter")[2].replace(RIGHT, WRONG)
    head, _, rest = MODEL.format(**dict.fromkeys(ODD_PLACES, "")).partition("def adapter(config):")
    top = "from bringup.adapters.algebra.expr import S\nfrom bringup.adapters.planning.adapter import Adapter, tied\n"
    file.write_text(f"{top}{head}def adapter{rules}\n\nfamily{rest.partition('family')[2]}".replace("-> Adapter", ""))
    result = bringup("check", file, "--checkpoint", small, "--fix")
    assert (result.exit_code, result.stderr) == (0, "fixed 2 errors\n"), result.output
    assert RIGHT in file.read_text()


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A family whose adapter lives in a module of a package that can be imported."""
    (tmp_path / "lib").mkdir()
    file = broken(tmp_path / "lib/adapter_in_a_package.py")
    (tmp_path / "my_model.py").write_text(
        "from bringup.graphs.family import Family\nfamily = Family(name='mine', graph='bringup.graphs.gpt2:GPT2', "
        "config='bringup.graphs.gpt2:GPT2Config', adapter='adapter_in_a_package:adapter')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path / "lib"))
    monkeypatch.delitem(__import__("sys").modules, "adapter_in_a_package", raising=False)
    return file


def test_an_adapter_that_is_imported(bringup: Bringup, small: Path, tmp_path: Path, package: Path) -> None:
    """A model file that names its adapter elsewhere: the edit goes there, and the check reads the new text."""
    result = bringup("check", tmp_path / "my_model.py", "--checkpoint", small, "--fix")
    assert (result.exit_code, result.stderr) == (0, "fixed 2 errors\n"), result.output
    assert package.read_text() == GPT2


def test_an_installed_package_is_not_edited(bringup: Bringup, small: Path, tmp_path: Path, package: Path) -> None:
    (tmp_path / "pyvenv.cfg").write_text("home = /usr/bin\n", "utf-8")  # a virtual environment, its libraries in lib/
    result = bringup("check", tmp_path / "my_model.py", "--checkpoint", small, "--fix")
    assert result.exit_code == 1
    assert "belongs to an installed package: copy it, and use --adapter FILE" in result.stderr
    assert "would fix 2 errors" in result.stderr
    assert package.read_text() != GPT2


def test_the_diff_does_not_spoil_what_programs_read(bringup: Bringup, small: Path, tmp_path: Path) -> None:
    file = broken(tmp_path / "mine.py")
    result = bringup("check", "--checkpoint", small, "--adapter", file, "--diff", "--format", "json")
    assert json.loads(result.stdout)["ok"] is False
    assert "\n-" in result.stderr
    assert "would fix 2 errors" in result.stderr


def test_a_folder_that_cannot_be_written_to(
    bringup: Bringup, small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = broken(tmp_path / "mine.py")
    before = file.read_bytes()

    created: dict[str, Callable[..., None]] = {}
    refuse = f"def refuse(*paths): raise PermissionError(13, 'Permission denied', {str(file)!r})"
    exec(compile(refuse, fix.__file__, "exec"), created)  # raised where bringup's own call would
    monkeypatch.setattr(os, "replace", created["refuse"])
    result = bringup("check", "--checkpoint", small, "--adapter", file, "--fix")
    assert result.exit_code == 3
    assert "error[BU901]" in result.output
    assert file.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine.py", "small"]


def test_columns_are_characters(tmp_path: Path) -> None:
    file = tmp_path / "x.py"
    file.write_text('"é日"; S("a.b")\n')
    read = PyFile.read(file)
    (call,) = read.sources("a.b", 1)
    start, end = read.span(call.args[0])
    assert read.text[start:end] == '"a.b"'
    edit = read.fix(start + 1, "a", "ä")
    assert (edit.line, edit.column) == (1, 9)
    assert read.edited([edit, edit]).text == '"é日"; S("ä.b")\n'


def test_bringups_own_adapter_is_found(bringup: Bringup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where bringup is a checkout its own tables are repaired as well; here a copy stands for them."""
    from bringup.compile.fix.trial import Bench, adapter_file
    from bringup.compile.job import open_job

    job = open_job(None, str(gpt2_checkpoint(tmp_path / "x")))
    path, function = adapter_file(job)
    assert path is not None
    assert (path.parts[-2:], function) == (("adapters", "gpt2.py"), "adapter")
    shutil.copy(path, tmp_path / "copy.py")
    bench = Bench.of(job)
    assert bench is not None
    built = bench.with_edits([])
    assert built is not None
    assert built.plan.problems == []


CONFLICTS = {
    "overlapping": [(1, 4, "bcd", "x"), (1, 5, "cd", "y")],
    "two insertions at one place": [(1, 4, "", "x"), (1, 4, "", "y")],
    "an insertion where a replacement begins": [(1, 4, "", "x"), (1, 4, "bcd", "y")],
    "another text": [(1, 4, "xyz", "x")],
    "past the end of the file": [(9, 0, "", "x")],
}


@pytest.mark.parametrize("edits", CONFLICTS.values(), ids=CONFLICTS)
def test_edits_that_contradict_are_refused(edits: list[tuple[int, int, str, str]]) -> None:
    file = PyFile(Path("a.py"), 'S("abcd")\n')
    with pytest.raises(EditConflict):
        file.edited(Fix("a.py", *edit) for edit in edits)


def test_edits_side_by_side_are_all_applied() -> None:
    file = PyFile(Path("a.py"), "abcd\nefgh\n")
    fixes = [Fix("a.py", 1, 0, "ab", "1"), Fix("a.py", 1, 2, "c", "23"), Fix("a.py", 2, 4, "", "!")]
    assert file.edited(fixes).text == "123d\nefgh!\n"
    assert file.edited([]).text == file.text
