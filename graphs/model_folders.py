"""Families in folders that the variable BRINGUP_MODELS lists, in the format of PATH.

Each Python file in such a folder that defines `family` adds it, as an entry point of an installed package does. The
file runs like a model file on the command line: it can import the files next to it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import TypeVar

from bringup import userfiles
from bringup.diagnostics import BringupError, Diagnostic, fail
from bringup.spec import Site
from bringup.system.os_errors import reason

VARIABLE = "BRINGUP_MODELS"
F = TypeVar("F")
NO_MODELS = ("_", ".", "test_", "conftest")  # prefixes of the names of files that are not run


def modules(failed: list[BringupError] | None = None) -> Iterator[tuple[Path, ModuleType]]:
    """The modules in the folders that BRINGUP_MODELS names, each run once until a file in its folder changes.

    A file that is found twice, through a link or a repeated folder, is one. A file that cannot be run or a folder that
    cannot be listed is omitted; `failed` receives BU026 for it.
    """
    seen: set[Path] = set()
    for folder in _folders():
        for path in _files(folder, failed):
            try:
                place = path.resolve()
                if place not in seen:
                    seen.add(place)
                    yield path, userfiles.module_of(path)
            except (Exception, SystemExit) as error:  # any error of a user's file is reported as BU026
                if failed is not None:
                    failed.append(_failure(path, error))


def named(name: str) -> Path | None:
    """The file NAME.py in one of these folders, which is searched first for a family of that name.

    None if the name is a path, or if no such file exists or can be reached.
    """
    if Path(name).name != name or name.startswith(NO_MODELS):
        return None
    return next((file for folder in _folders() if _is_file(file := folder / f"{name}.py")), None)


def in_use(family: F) -> F:
    """The same family; if a user's file defines it, records that a model uses it."""
    if module := userfiles.defining(family):
        userfiles.use(module)
    return family


def file_of(family: object) -> Path | None:
    """The user's file that defines a family, among those that this process has run."""
    module = userfiles.defining(family)
    return Path(str(module.__file__)) if module else None


def _folders() -> list[Path]:
    return [Path(folder) for folder in os.environ.get(VARIABLE, "").split(os.pathsep) if folder]


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a folder that may not be entered, a name that is too long: `modules` reports the folder
        return False


def _files(folder: Path, failed: list[BringupError] | None) -> list[Path]:
    try:
        files = sorted(_python_files(folder))
        if not files and failed is not None and (inner := [each for each in folder.iterdir() if _has_models(each)]):
            named = os.pathsep.join(str(each) for each in sorted(inner)[:3])
            message = f"{VARIABLE} names `{folder}`, which has no Python file; folders inside it are not searched"
            failed.append(fail("BU026", message, help=f"name the folders of the files: {VARIABLE}={named}"))
        return files
    except OSError as error:
        if failed is not None:
            help = f"correct {VARIABLE}: folders with Python files, separated by `{os.pathsep}`"
            failed.append(
                fail("BU026", f"{VARIABLE} names `{folder}`, which cannot be listed: {reason(error)}", help=help)
            )
        return []


def _python_files(folder: Path) -> Iterator[Path]:
    return (path for path in folder.iterdir() if path.suffix == ".py" and not path.name.startswith(NO_MODELS))


def _has_models(path: Path) -> bool:
    try:
        return not path.name.startswith(NO_MODELS) and path.is_dir() and any(_python_files(path))
    except OSError:  # a folder that may not be entered
        return False


def _failure(path: Path, error: BaseException) -> BringupError:
    if isinstance(error, BringupError):
        return error
    message = str(error.msg) if isinstance(error, SyntaxError) else str(error).strip().partition("\n")[0]
    line = (error.lineno or 1) if isinstance(error, SyntaxError) else _last_line(path, error)
    finding = Diagnostic(
        code="BU026",
        message=f"`{path}` fails when it is run: {type(error).__name__}: {message}",
        help=f"correct it, or leave it out of the folders that {VARIABLE} names",
        where=Site(str(path), line),
    )
    found = BringupError(finding)
    found.__cause__ = error
    return found


def _last_line(path: Path, error: BaseException) -> int:
    import traceback

    own = [
        line
        for frame, line in traceback.walk_tb(error.__traceback__)
        if frame.f_code.co_filename == os.path.abspath(path)  # noqa: PTH100  as userfiles names it
    ]
    return own[-1] if own else 1
