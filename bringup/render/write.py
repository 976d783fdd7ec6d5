"""Writes a report to a file: complete, or not at all."""

from __future__ import annotations

import os
from pathlib import Path

from bringup.diagnostics import fail
from bringup.system.os_errors import unwritable


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
        reason = (error.strerror or "").lower()
        raise fail("BU021", f"cannot write the report `{file}`: {reason}", help="give the path of a file") from error
    except OSError as error:
        raise unwritable(error, file) from error
