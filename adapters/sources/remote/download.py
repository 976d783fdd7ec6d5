"""Downloads that resume where they stopped: a file gets its name only once it is complete."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from bringup.adapters.sources.remote.client import Facts
from bringup.adapters.sources.remote.remote_file import RemoteFile, RemoteFolder
from bringup.diagnostics import BringupError, fail
from bringup.progress import Silent
from bringup.system.lock import locked, sibling_path
from bringup.system.os_errors import unwritable

PIECE = 16 << 20  # bytes of one request


def download(folder: RemoteFolder, names: Iterable[str], target: Path) -> Path:
    """The files in a local folder. Raises BU013, BU901, BU902, BU913 to BU916.

    An existing file with the server's size and tag is not downloaded again; `.NAME.facts.json` has both. A partial
    download is in `.NAME.part`, and is resumed unless the file has changed since. One process at a time downloads a
    file.
    """
    for name in names:
        place = target / name
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            _one(folder / name, place)
        except OSError as error:
            raise unwritable(error, place) from error
    return target


def _one(file: RemoteFile, target: Path) -> None:
    if _is_current(file, target):
        return
    with locked(target, Silent()):
        if not _is_current(file, target):  # another process may have downloaded it meanwhile
            _fetch(file, target)


def _is_current(file: RemoteFile, target: Path) -> bool:
    """Whether a complete file of the server's size and tag exists; a file from another source has no tag."""
    size = file.stat().st_size
    if not target.is_file() or target.stat().st_size != size:
        return False
    noted = _noted(sibling_path(target, "facts.json"))
    return noted is None or noted == file.facts


def _fetch(file: RemoteFile, target: Path) -> None:
    """Downloads the missing bytes of the partial file. Only the holder of the lock of `target` may call it."""
    assert file.facts is not None, "stat sets them"
    size, part, note = file.facts.size, sibling_path(target, "part"), sibling_path(target, "part.json")
    if _noted(note) != file.facts or not part.is_file() or part.stat().st_size > size or not file.facts.tag:
        part.write_bytes(b"")
        note.write_text(json.dumps([file.facts.size, file.facts.tag]), "utf-8")
    with part.open("r+b") as out:
        start = out.seek(0, os.SEEK_END)
        while start < size:
            try:
                data = file.read_range(start, min(PIECE, size - start))
            except BringupError as error:
                if error.findings[0].code == "BU916":  # it has changed: the partial file is outdated
                    note.unlink(missing_ok=True)
                raise
            out.seek(start)
            start += out.write(data)
        out.flush()
        os.fsync(out.fileno())
        if os.fstat(out.fileno()).st_size != size:
            note.unlink(missing_ok=True)
            help = "run again, and let no other program write to that folder"
            raise fail("BU916", f"`{part}` has changed while `{file}` was fetched to it", help=help)
    part.replace(target)
    note.replace(sibling_path(target, "facts.json"))


def _noted(note: Path) -> Facts | None:
    """The facts of the file when its download began."""
    with suppress(OSError, ValueError, TypeError):
        size, tag = json.loads(note.read_text("utf-8"))
        return Facts(size, tag)
    return None
