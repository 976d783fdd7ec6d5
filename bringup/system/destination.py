"""Whether a file or a folder can be written, as far as that is known before anything is written.

A command checks its outputs before its work. A disk that becomes full meanwhile is BU902 at the write.
"""

from __future__ import annotations

import os
from pathlib import Path

from bringup.diagnostics import fail
from bringup.system.os_errors import reason


def check_new_file(file: Path, option: str = "-o") -> None:
    """Raises BU901 if no file can be written at `file`: its folder must exist. `option` is the one that names it."""
    if why := obstacle_to_file(file):
        raise fail("BU901", f"cannot write `{file}`: {why}", help=f"choose another path with {option}")


def check_new_folder(folder: Path, option: str = "-o") -> None:
    """Raises BU901 if no files can be added to `folder`, which is created with its parents if it does not exist."""
    if why := obstacle_to_folder(folder):
        raise fail("BU901", f"cannot write `{folder}`: {why}", help=f"choose another path with {option}")


def obstacle_to_file(file: Path, *, streams: bool = False) -> str | None:
    """Why no file can be written at `file`; None if nothing prevents it.

    `streams`: pipes and devices are allowed, and a link stands for its target, which is written to.
    """
    try:
        file = file.resolve() if streams and file.is_symlink() else file
        if file.is_dir():
            return "it is a folder"
        if file.exists() and not file.is_file():
            return None if streams and os.access(file, os.W_OK) else "it is not a regular file"
        if not file.parent.exists():
            return f"no such folder: `{file.parent}`"
        return _obstacle_in(file.parent)
    except OSError as error:  # a name that is too long, or below a folder that this user cannot read
        return reason(error)


def obstacle_to_folder(folder: Path, *, replaced: bool = False) -> str | None:
    """The same for a folder, whose parents are created: its files are first written to a folder next to it. `replaced`:
    nothing is written to the folder itself.
    """
    try:
        if folder.exists() and not replaced and (why := _obstacle_in(folder)):
            return why
        return _obstacle_in(next(each for each in folder.absolute().parents if each.exists()))
    except OSError as error:
        return reason(error)


def _obstacle_in(folder: Path) -> str | None:
    if not folder.is_dir():
        return f"`{folder}` is not a folder"
    return None if os.access(folder, os.W_OK | os.X_OK) else f"`{folder}` is not writable by this user"
