"""Entry points of installed packages, each loaded separately: the failure of one does not affect the others.

https://packaging.python.org/en/latest/specifications/entry-points/
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bringup.diagnostics import BringupError, Diagnostic, Severity
from bringup.spec import Site

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

MODELS, READERS, TARGETS = "bringup.models", "bringup.readers", "bringup.targets"
SCHEMES = "bringup.schemes"


def points(group: str, name: str = "") -> Sequence[EntryPoint]:
    """The entry points of a group, or those of one name in it."""
    return [point for point in _installed(group, tuple(_places())) if not name or point.name == name]


@lru_cache(maxsize=32)
def _installed(group: str, places: tuple[tuple[str, int], ...]) -> Sequence[EntryPoint]:
    """The entry points of a group in some folders. Reads the metadata of every installed package."""
    from importlib.metadata import entry_points

    return [*entry_points(group=group)]


def _places() -> Iterator[tuple[str, int]]:
    """The folders with installed packages, each with its modification time, which a new package changes."""
    for path in sys.path:
        try:
            yield path, Path(path).stat().st_mtime_ns
        except OSError:
            yield path, 0


def load(point: EntryPoint, wanted: type | None = None, problem: Callable[[Any], str] | None = None) -> Any:
    """The object that an entry point names. Raises BU026 if it cannot be loaded, or is not a `wanted`.

    `problem` returns another reason why an object is unusable, as the rest of a sentence; "" for none.
    """
    try:
        loaded = point.load()
    except (Exception, SystemExit) as error:  # any error while a plugin is imported is the plugin's
        raise BringupError(_failure(point, error)) from error
    if wanted and not isinstance(loaded, wanted):
        raise BringupError(_finding(point, f"is a {type(loaded).__name__}, not a {wanted.__name__}", None))
    if problem and (why := problem(loaded)):
        raise BringupError(_finding(point, why, None))
    return loaded


def broken(point: EntryPoint, message: str) -> BringupError:
    """BU026 for a part of a plugin."""
    return BringupError(_finding(point, message, None))


def named(place: str) -> Any:
    """The object that a text `module:name` names. Raises LookupError with the reason if there is none, and the errors
    of the module.
    """
    module, _, name = place.partition(":")
    if not (module and name):
        raise LookupError("it is not of the form `module:name`")
    try:
        found = import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # a module that this one imports
        raise LookupError(f"there is no module `{error.name}`") from error
    if not hasattr(found, name):
        raise LookupError(f"`{module}` defines no `{name}`")
    return getattr(found, name)


def not_found(
    failed: Sequence[BringupError], *, code: str, message: str, help: str, file: str = "", config_key: str = ""
) -> BringupError:
    """An error, with a warning for each plugin that could not be loaded: it may have the missing name."""
    warnings = as_warnings(failed)
    error = BringupError(Diagnostic(code=code, message=message, help=help, file=file, config_key=config_key), *warnings)
    error.__cause__ = failed[0] if len(failed) == 1 else ExceptionGroup("plugins", failed) if failed else None
    return error


def as_warnings(failed: Sequence[BringupError]) -> list[Diagnostic]:
    """The findings of plugins that could not be loaded, as warnings."""
    return [replace(finding, severity=Severity.WARNING) for error in failed for finding in error.findings]


def module_of(point: EntryPoint) -> str:
    """The module that an entry point names; "" if it is not a reference to an object."""
    try:
        return point.module
    except AttributeError:  # raised by importlib.metadata for text that its pattern does not match
        return ""


def _failure(point: EntryPoint, error: BaseException) -> Diagnostic:
    message = str(error.msg) if isinstance(error, SyntaxError) else str(error).strip().partition("\n")[0]
    if not module_of(point):
        message, error = "it does not name MODULE:OBJECT", ValueError(point.value)
    message = f"{type(error).__name__}: {message}" if message else type(error).__name__
    return _finding(point, f"cannot be loaded: {message}", _last_line(point, error))


def _finding(point: EntryPoint, message: str, where: Site | None) -> Diagnostic:
    package = f"the package `{point.dist.name}`" if point.dist else "the package"
    return Diagnostic(
        code="BU026",
        message=f"plugin `{point.name}` (`{point.value}`) {message}",
        help=f"correct, update or uninstall {package}; `bringup -v …` shows the traceback",
        where=where,
    )


def _last_line(point: EntryPoint, error: BaseException) -> Site | None:
    """The last line of the plugin's own package in an error's traceback."""
    if isinstance(error, SyntaxError) and error.filename:
        return Site(error.filename, error.lineno or 1)
    top = module_of(point).partition(".")[0]
    own = [
        Site(frame.f_code.co_filename, line)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if frame.f_globals.get("__name__", "").partition(".")[0] == top
    ]
    return own[-1] if own else None
