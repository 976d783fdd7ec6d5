"""A mistake in bringup: exit 101, a few lines, and a report file without secrets."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bringup.cli.errors import crash
from bringup.cli.errors.failures import report_error
from bringup.progress import RECENT_LINES

# What a mistake inside bringup looks like: the command's own code is made to raise.
SCRIPT = """
import sys
from bringup.cli import models
from bringup.cli.main import main

code = compile({raising!r}, models.__file__, "exec")
raising = type(main)(code, {{"__name__": "bringup.cli.models"}})
models.command.callback = lambda **options: raising()
main()
"""
RAISING = "raise ZeroDivisionError('no quotient for hf_abcdefghijklmnop')"


def crashed(state: Path, *words: str, raising: str = RAISING, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", SCRIPT.format(raising=raising), "models", *words]
    where = os.environ | {"XDG_STATE_HOME": str(state), "TMPDIR": str(state)} | env
    return subprocess.run(command, capture_output=True, text=True, check=False, env=where)


def test_a_report_file(tmp_path: Path) -> None:
    done = crashed(tmp_path, HF_TOKEN="hf_secretsecret", BRINGUP_THING="private")
    assert (done.returncode, done.stdout) == (101, "")
    (file,) = (tmp_path / "bringup").glob("crash-*.txt")
    assert done.stderr.splitlines() == [
        done.stderr.splitlines()[0],
        f"  crash report: {file}",
        "  please report it with that file",
    ]
    assert done.stderr.startswith("this is a bug in bringup 0.1.0: ZeroDivisionError: no quotient for hf_…\n")
    text = file.read_text("utf-8")
    for part in (
        "## versions\n\nbringup ",
        "## command\n\nbringup models\n",
        "Traceback (most recent",
        "ZeroDivisionError",
    ):
        assert part in text
    assert "\nBRINGUP_THING\n" in text
    assert "\nHF_TOKEN\n" in text
    assert all(secret not in text for secret in ("hf_secretsecret", "hf_abcdefghijklmnop", "private"))
    assert file.stat().st_mode & 0o077 == 0


def test_the_traceback_is_shown_on_request(tmp_path: Path) -> None:
    assert "Traceback" not in crashed(tmp_path).stderr
    assert "Traceback" in crashed(tmp_path, "-v").stderr


def test_without_a_folder_of_its_own_it_goes_to_the_temporary_one(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = crashed(tmp_path / "file", TMPDIR=str(tmp_path))
    assert done.returncode == 101
    assert len(list(tmp_path.glob("crash-*.txt"))) == 1


def test_where_nothing_can_be_written_the_report_is_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(crash, "_folders", lambda: [tmp_path / "file/x", Path("/proc")])
    RECENT_LINES.append("Writing \udcfe")  # a folder whose name is no UTF-8
    assert report_error(ZeroDivisionError("x"), ["models"], verbose=False) == 101
    shown = capsys.readouterr().err
    assert "no folder is writable" in shown
    assert "## traceback" in shown
    assert r"Writing \udcfe" in shown


@pytest.mark.parametrize(
    "raising",
    [
        "def f(): f()\nf()",
        "raise ExceptionGroup('several', [ValueError('one'), KeyError('two')])",
        "raise type('Odd', (Exception,), {'__str__': lambda self: 'first line\\nsecond line'})()",
        "raise UnicodeEncodeError('ascii', '\\ud800', 0, 1, 'no')",
        "raise type('Mute', (Exception,), {'__str__': lambda self: 1 / 0})()",
        "assert False, 'a promise was broken'",
        "raise StopIteration",
        "raise LookupError('\\ud800 \\x00 \\x1b[31m')",
        "import asyncio; raise asyncio.TimeoutError",
    ],
)
def test_whatever_it_was(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, raising: str
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with pytest.raises(BaseException) as caught:  # noqa: PT011  whatever it is
        exec(compile(raising, crash.__file__, "exec"), {"__name__": "bringup.odd"})
    error = caught.value
    assert isinstance(error, Exception)
    assert error.__traceback__
    error.__traceback__ = error.__traceback__.tb_next  # without this file
    assert report_error(error, ["models"], verbose=False) == 101
    shown = capsys.readouterr().err
    assert shown.count("\n") == 3
    assert "Traceback" not in shown
    assert len(list((tmp_path / "bringup").glob("crash-*.txt"))) == 1


TRIPPED = """
import signal
try:
    signal.raise_signal(signal.SIGTERM)
finally:
    raise AssertionError("Trying to pop empty mode stack")
"""


def test_a_library_that_trips_over_a_stop(tmp_path: Path) -> None:
    """As torch does, where a signal comes while it enters one of its modes."""
    done = crashed(tmp_path, raising=TRIPPED)
    assert (done.returncode, done.stderr) == (143, "stopped by SIGTERM; partial files were removed\n")
    assert not list(tmp_path.iterdir())


def test_the_interpreter_ends_in_silence(tmp_path: Path) -> None:
    """Finalisers of libraries that stumble when everything around them is gone."""
    raising = "import bringup\nclass Leaky:\n    def __del__(self): raise OSError('too late')\nbringup.kept = Leaky()"
    done = crashed(tmp_path, raising=raising)
    assert (done.returncode, done.stderr) == (0, "")
    assert "too late" in crashed(tmp_path, "-v", raising=raising).stderr


SECRETS = {
    "https://me:s3cretpass@host/x": "https://…@host/x",
    "--token abcdef123456 --next": "--token … --next",
    "?X-Amz-Signature=deadbeef&x=1": "?X-Amz-Signature=…&x=1",
    "api_key='abcdef123456'": "api_key=…",
    "Authorization: Bearer abcdef123456": "Authorization: Bearer …",
    "hf_abcdefghijkl": "hf_…",
    "--tokens 1,2,3": "--tokens 1,2,3",
    "hf://org/name": "hf://org/name",
    "layers.0.sig.weight": "layers.0.sig.weight",
}


@pytest.mark.parametrize(("text", "left"), SECRETS.items())
def test_secrets_do_not_stay(text: str, left: str) -> None:
    assert crash.scrubbed(text).replace("'", "") == left.replace("'", "")


def test_values_of_secret_variables_do_not_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_PASSWORD", "correct horse")
    assert crash.scrubbed("it said: correct horse") == "it said: …"


def test_recent_lines_are_in_the_report() -> None:
    from io import StringIO

    from bringup.render.progress import StageLines

    RECENT_LINES.clear()
    stream = StringIO()
    with pytest.raises(ZeroDivisionError), StageLines(stream).stage("Exporting gpt2"):
        raise ZeroDivisionError
    assert "## last messages\n\nExporting gpt2\n" in crash.report(ZeroDivisionError(), ["compile", "gpt2"])


def test_a_compiler_that_dies_is_one_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    binaries = pytest.importorskip("iree.compiler.tools.binaries")
    from bringup.compile.targets.iree_compiler import IreeOptions, LoweringError, compile_mlir

    options = IreeOptions(device_flags=("--iree-llvmcpu-target-cpu=generic",))
    tool, runs = tmp_path / "iree-compile", tmp_path / "runs"
    monkeypatch.setattr(binaries, "find_tool", lambda name: str(tool))
    for text, signal, message in (
        ("Stack dump: error: none of these", "SEGV", "iree-compile was ended by SIGSEGV"),
        ("LLVM ERROR: cannot split", "ABRT", "iree-compile was ended by SIGABRT: LLVM ERROR: cannot split"),
    ):
        tool.write_text(f"#!/bin/sh\necho '{text}' >&2\necho >> {runs}\nkill -{signal} $$\n")
        tool.chmod(0o755)
        with pytest.raises(LoweringError, match=f"^{message}$"):
            compile_mlir("module {}", options)
    assert runs.read_text() == "\n\n", "it is not run again, as after an error, for another message"
