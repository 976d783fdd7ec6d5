"""The adapter of a job: a user's file, a dialect's table, or the family's own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from bringup import userfiles
from bringup.adapters.dialects.dialect import Dialect
from bringup.adapters.planning.adapter import Adapter
from bringup.diagnostics import fail
from bringup.graphs.registry import Family


def adapter_of(family: Family, dialect: Dialect | None, file: str | None, settings: Any) -> Adapter:
    """The user's table, the dialect's, or the family's own."""
    if file is not None:
        return _from_file(file, settings)
    return (dialect.table if dialect else family.load("adapter"))(settings)


def _from_file(path: str, settings: Any) -> Adapter:
    """What the `adapter` of a user's file makes of a config. Raises BU004 when it is no such function."""
    if not Path(path).is_file():
        raise fail("BU004", f"there is no adapter file `{path}`")
    try:
        make = getattr(userfiles.run(Path(path)), "adapter", None)
    except SyntaxError as error:
        error.filename = error.filename or path  # of what is no text Python does not say it
        raise
    help = "see docs/adding-a-model.md"
    if not callable(make) or not _takes_one(make):
        raise fail("BU004", f"`{path}` defines no function `adapter(config)`", help=help)
    adapter = make(settings)
    if not isinstance(adapter, Adapter):
        raise fail("BU004", f"`adapter` of `{path}` gives a {type(adapter).__name__}, not an `Adapter`", help=help)
    return adapter


def _takes_one(function: Callable[..., Any]) -> bool:
    import inspect  # 10 ms, for those who give a file

    try:
        inspect.signature(function).bind(None)
    except TypeError:
        return False
    return True
