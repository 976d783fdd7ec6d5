"""The identity of a file's bytes: a digest if that is fast, otherwise metadata of the file system."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Collection
from pathlib import Path

QUICK = 16 << 20  # bytes of the largest file that is hashed; takes some 20 ms
SETTLED = 2.0  # seconds; the coarsest clock of a file system, FAT's: a file may be written again within a tick

State = list[int]


class Unsettled(Exception):
    """A file that was written just now: another write might not change its metadata."""


def identities(files: Collection[Path]) -> list[str]:
    """Values that change with the files, in order of names. Raises OSError, and Unsettled for a large file just
    written.

    The change time (ctime) is set by the kernel: no program can set it back, unlike the modification time.
    """
    return sorted(identity_by_file(files).values())


def identity_by_file(files: Collection[Path]) -> dict[Path, str]:
    """The identity of each, equal for files with the same bytes and name. Raises as `identities` does."""
    if sum(file.stat().st_size for file in files) <= QUICK:
        return {file: f"{file.name} {_digest(file)}" for file in files}
    return {file: f"{file.resolve()} {settled(file)}" for file in files}


def settled(file: Path) -> State:
    """A file's state. Raises Unsettled if a further write might not change it."""
    stat = file.stat()
    if max(stat.st_mtime, stat.st_ctime) > time.time() - SETTLED:
        raise Unsettled(file)
    return state_of(stat)


def state_of(stat: os.stat_result) -> State:
    """Stat fields that change if a file is written or replaced."""
    return [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino, stat.st_dev]


def _digest(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
