"""Whose code raised an error: bringup's, or a file of the user's."""

from __future__ import annotations

import traceback
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from bringup import plugins
from bringup.diagnostics import BringupError, Diagnostic
from bringup.installed import is_installed
from bringup.spec import Site


def of_user_code(error: BaseException) -> BringupError | None:
    """BU026 with the last line of a model file, an adapter file or a plugin in an error's traceback; else None."""
    site = _last_line(error)
    if site is None:
        return None
    text = str(error.msg) if isinstance(error, SyntaxError) else str(error).strip().partition("\n")[0]
    text = f"{type(error).__name__}: {text}" if text else type(error).__name__
    help = "correct the file; `bringup -v …` shows how it came to that line"
    message = f"`{Path(site.file).name}` fails when it is run: {text}"
    return BringupError(Diagnostic(code="BU026", message=message, where=site, help=help))


def _last_line(error: BaseException) -> Site | None:
    if isinstance(error, SyntaxError) and error.filename and _is_users(error.filename, ""):
        return Site(error.filename, error.lineno or 1)
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        if _is_users(frame.f_code.co_filename, frame.f_globals.get("__name__", "")):
            return Site(frame.f_code.co_filename, line)
    return None


@cache
def _is_users(file: str, module: str) -> bool:
    """Whether a file is not bringup's, nor Python's, nor that of an installed package that is not a plugin."""
    path = Path(file).resolve()
    if not path.is_file() or any(path.is_relative_to(folder) for folder in _own_folders()):
        return False
    if module.partition(".")[0] in _plugins():
        return True
    return not is_installed(path)


@cache
def _own_folders() -> set[Path]:
    """The folders of bringup's own files."""
    specs = [find_spec(f"bringup.{name}") for name in ("graphs", "adapters", "compile")]
    folders = [folder for spec in specs if spec for folder in spec.submodule_search_locations or ()]
    return {Path(folder).resolve() for folder in [Path(__file__).parents[2], *folders]}


@cache
def _plugins() -> set[str]:
    groups = (plugins.MODELS, plugins.READERS, plugins.TARGETS)
    return {plugins.module_of(point).partition(".")[0] for group in groups for point in plugins.points(group)}
