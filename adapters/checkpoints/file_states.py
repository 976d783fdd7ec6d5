"""The states of a checkpoint's files when their headers were read: offsets of a header are valid for no other file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from bringup.adapters.checkpoints.files import entries, is_local
from bringup.diagnostics import fail


class FileState(NamedTuple):
    """Fields of stat that a write to a file, or its replacement, changes; a new link or new permissions do not."""

    nbytes: int
    written: int  # ns since 1970
    inode: int
    device: int


def state_of(file: Path) -> FileState | None:
    """The state of a file; None if it does not exist."""
    try:
        stat = file.stat()
    except OSError:
        return None
    return FileState(stat.st_size, stat.st_mtime_ns, stat.st_ino, stat.st_dev)


def states_before(path: Path) -> dict[Path, FileState | None]:
    """The states of a file, or of the files in a folder, before any header is read."""
    if not is_local(path):
        return {}
    try:
        return {file: state_of(file) for file in (path / name for name in entries(path))}
    except OSError:  # no folder
        return {path: state_of(path)}


def states_of(files: Iterable[Path], before: Mapping[Path, FileState | None]) -> dict[Path, FileState | None]:
    """The states of the local ones of the files whose headers were read; of those not in `before` the present ones."""
    return {file: before[file] if file in before else state_of(file) for file in files if is_local(file)}


def refuse_changed(states: Mapping[Path, FileState | None]) -> None:
    """Raises BU207 for the first file that was written to, replaced or removed since its state was recorded."""
    for file, before in states.items():
        if (now := state_of(file)) != before:
            how = "was removed" if now is None else "was written to or replaced"
            raise fail(
                "BU207",
                f"`{file}` {how} after its header was read",
                help="let whatever writes the file finish, then open the checkpoint again",
                file=str(file),
            )
