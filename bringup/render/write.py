"""Writes a report to a file: complete, or not at all."""

from __future__ import annotations

import os
from pathlib import Path

from bringup.diagnostics import BringupError, fail
from bringup.system.destination import obstacle_to_file
from bringup.system.os_errors import reason, unwritable


def check_report(file: Path) -> None:
    """Raises BU021 if no report can be written to `file`, as far as that is known before the work."""
    if why := obstacle_to_file(file, streams=True):
        raise _unwritable(file, why)


def write_whole(file: Path, text: str) -> None:
    """Replaces a file atomically; a path that is not a regular file (a pipe, /dev/stdout) is written to.

    Raises BU021 if the path cannot be that of a file, and BU901 to BU903 for errors of the system.
    """
    path = Path(os.path.realpath(file))
    part = path.with_name(f".{path.name[:200]}.{os.getpid()}.part")
    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            path.write_text(text, "utf-8")
            return
        try:
            part.write_text(text, "utf-8")
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        raise _unwritable(file, reason(error)) from error
    except OSError as error:
        raise unwritable(error, file) from error


def _unwritable(file: Path, why: str) -> BringupError:
    return fail("BU021", f"cannot write the report `{file}`: {why}", help="give the path of a file that can be written")
