"""Runs the commands of a page: `bringup …` and `python FILE …` in this process, all other lines in a shell.

A line with shell syntax (a variable, a redirection, `&&`), and a file that starts processes or changes bringup itself,
run in processes, as users run them.
"""

from __future__ import annotations

import io
import os
import re
import runpy
import shlex
import subprocess
import sys
import traceback
import warnings
from collections.abc import Generator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from bringup.cli.main import cli
from tests import PATIENCE

_ALONE = re.compile(r"\bsubprocess\b|\bbringup\.(cli|compile)\b")
_SHELL = re.compile(r"[|&;<>()$`*?~{}\\]|^\w+=")


def run(line: str, folder: Path) -> tuple[int, str]:
    """The exit code of a command, and what it prints; `bringup` and `python` are those of the tests."""
    places = {"HOME": str(folder), "HF_HUB_OFFLINE": "1", "XDG_CACHE_HOME": str(folder / ".cache")}
    places |= {"PYTHONDONTWRITEBYTECODE": "1"}
    program, *words = shlex.split(line) if not _SHELL.search(line) else [""]
    if program == "bringup":
        return _here(folder, places, lambda: cli.main(words))
    if program == "python" and not _ALONE.search((folder / words[0]).read_text("utf-8")):
        return _here(folder, places, lambda: _script(words))
    return _shell(line, folder, places)


def _shell(line: str, folder: Path, places: dict[str, str]) -> tuple[int, str]:
    scripts = Path(sys.executable).parent
    done = subprocess.run(
        ["bash", "-c", line], cwd=folder, env=os.environ | places | {"PATH": f"{scripts}:{os.environ['PATH']}"},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=PATIENCE,
        check=False,
    )  # fmt: skip
    return done.returncode, done.stdout


def _script(words: Sequence[str]) -> None:
    sys.argv[:] = words
    sys.path.insert(0, str(Path.cwd()))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # as in a process of its own, which ends with open files
        runpy.run_path(words[0], run_name="__main__")


def _here(folder: Path, places: dict[str, str], command) -> tuple[int, str]:
    """Calls a command as the main program of a process in `folder`; what it imported from there is forgotten."""
    output = io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True)
    with pytest.MonkeyPatch.context() as patch, _modules_of(folder):
        patch.chdir(folder)
        for name, value in places.items():
            patch.setenv(name, value)
        patch.setattr(sys, "argv", ["bringup"])
        patch.setattr(sys, "path", list(sys.path))
        patch.setattr(sys, "dont_write_bytecode", True)
        patch.setattr(sys, "stdin", io.StringIO())
        with redirect_stdout(output), redirect_stderr(output):
            status = _status(command)
    return status, output.buffer.getvalue().decode()


def _status(command) -> int:
    """The exit code that Python gives for how a program ends: see sys.exit and sys.excepthook."""
    try:
        command()
    except SystemExit as ended:
        if ended.code is None or isinstance(ended.code, int):
            return ended.code or 0
        print(ended.code, file=sys.stderr)
        return 1
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


@contextmanager
def _modules_of(folder: Path) -> Generator[None]:
    yield
    below = f"{folder}/"
    for name, module in list(sys.modules.items()):
        if (getattr(module, "__file__", None) or "").startswith(below):
            del sys.modules[name]
