"""The identity of a file's bytes: a digest if that is fast, otherwise metadata of the file system."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Collection
from pathlib import Path

QUICK = 16 << 20  # bytes that are read rather than trusted; some 20 ms
SETTLED = 2.0  # seconds; the clocks of file systems tick less often than a file can be written, FAT's every 2 s

State = list[int]


class Unsettled(Exception):
    """A file that was written just now: it may change again without a sign of it."""


def identities(files: Collection[Path]) -> list[str]:
    """What changes when a file does, in order of names. Raises OSError, and Unsettled for a large file just written.

    The time of the last change of any kind (ctime) is the kernel's: no program sets it back, unlike the time of the
    last write.
    """
    return sorted(identity_by_file(files).values())


def identity_by_file(files: Collection[Path]) -> dict[Path, str]:
    """The identity of each, equal for files that have the same bytes and name. Raises as `identities` does."""
    if sum(file.stat().st_size for file in files) <= QUICK:
        return {file: f"{file.name} {_digest(file)}" for file in files}
    return {file: f"{file.resolve()} {settled(file)}" for file in files}


def settled(file: Path) -> State:
    """A file's state. Raises Unsettled where that does not yet tell it apart from what it may become."""
    stat = file.stat()
    if max(stat.st_mtime, stat.st_ctime) > time.time() - SETTLED:
        raise Unsettled(file)
    return state_of(stat)


def state_of(stat: os.stat_result) -> State:
    """What changes when a file is written to or replaced."""
    return [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino, stat.st_dev]


def _digest(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
