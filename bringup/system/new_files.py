"""Several files that appear in a folder together, or, after an error, not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from bringup.diagnostics import BringupError
from bringup.system.lock import sibling_path
from bringup.system.os_errors import refused, unwritable

OF_WRITING = ("BU901", "BU902")


@contextmanager
def new_files(folder: Path, keep: Callable[[BaseException], bool] = lambda _: False) -> Generator[Path]:
    """A hidden folder next to `folder`. Its files are moved to `folder` when the block ends, and replace others there.

    After an error for which `keep` does not return true, they are removed, and so are the folders that did not exist.
    Raises BU901 and BU902.
    """
    created = [place for place in (folder, *folder.parents) if not place.exists()]
    part = sibling_path(folder.absolute(), f"{os.getpid()}.part")
    complete = False
    try:
        try:
            make_folder(part)
        except BringupError as error:
            raise _named(error, part, folder) from error
        try:
            yield part
        except BaseException as error:
            if keep(error):
                _move(part, folder)
                complete = True
            if isinstance(error, BringupError):
                raise _named(error, part, folder) from error
            raise
        _move(part, folder)
        complete = True
    except BaseException:
        if not complete:
            shutil.rmtree(part, ignore_errors=True)
            _remove(created)
        raise
    finally:
        shutil.rmtree(part, ignore_errors=True)


def is_of_writing(error: BaseException) -> bool:
    """Whether a file could not be written."""
    if isinstance(error, BringupError):
        return any(finding.code in OF_WRITING for finding in error.findings)
    return isinstance(error, OSError) or refused(error) is not None


def make_folder(folder: Path) -> None:
    """Creates a folder and its parents, if they do not exist. Raises BU901 and BU902."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(error, folder) from error


def _move(part: Path, folder: Path) -> None:
    """Moves all files; if one cannot be moved, those that were are removed."""
    moved: list[Path] = []
    make_folder(folder)
    try:
        for path in sorted(path for path in part.rglob("*") if path.is_file()):
            place = folder / path.relative_to(part)
            place.parent.mkdir(parents=True, exist_ok=True)
            path.replace(place)
            moved.append(place)
    except OSError as error:
        for path in moved:
            path.unlink(missing_ok=True)
        raise unwritable(error, folder) from error


def _named(error: BringupError, part: Path, folder: Path) -> BringupError:
    """The error, with the name of the folder in place of the hidden one."""
    return BringupError(
        *(replace(each, message=each.message.replace(str(part), str(folder))) for each in error.findings)
    )


def _remove(created: Sequence[Path]) -> None:
    """Removes folders that are empty, the innermost first."""
    for folder in created:
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
