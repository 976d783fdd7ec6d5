"""One writer at a time for each path, as long as its process lives.

The lock is flock(2) on a file next to the path: the kernel releases it however a process ends, so files that the
previous holder left are known to be abandoned. The file's text names the holder, for processes that wait.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from bringup.diagnostics import BringupError, Diagnostic, Severity, fail
from bringup.progress import Progress
from bringup.system.os_errors import ELSEWHERE, reason, refused
from bringup.system.signals import signals_deferred

_LONGEST = 200  # bytes of a name, so that derived names stay below the 255 of most file systems


def sibling_path(place: Path, what: str) -> Path:
    """The hidden name next to `place` that its writer uses for `what`: `.gpt2.bundle.lock`."""
    name = place.name
    while len(os.fsencode(name)) > _LONGEST:
        name = name[:-1]
    return place.with_name(f".{name}.{what}")


@contextmanager
def locked(place: Path, progress: Progress) -> Generator[None]:
    """The exclusive right to write at `place`. Waits for a process that has it, with one message. Raises BU013."""
    path = sibling_path(place, "lock")
    try:
        descriptor = _acquired(path, place, progress)
    except OSError as error:
        raise refused(error, place.parent) or _unlockable(error, place) from error
    try:
        yield
    finally:
        with signals_deferred():
            path.unlink(missing_ok=True)  # while it is locked: waiting processes notice that it is another file now
            os.close(descriptor)


def _acquired(path: Path, place: Path, progress: Progress) -> int:
    """The descriptor of the lock file, locked."""
    reported = False
    while True:
        held = False
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            held = _taken(descriptor)
            if not held:
                if not reported:
                    progress.warn(_waiting(descriptor, place))
                reported = True
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                held = True
            if _lies_at(descriptor, path):
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, f"process {os.getpid()} on {os.uname().nodename}".encode(), 0)
                return descriptor
        except BaseException:
            if held:
                path.unlink(missing_ok=True)
            os.close(descriptor)
            raise
        os.close(descriptor)  # its holder has removed it: try again with the new file


def _taken(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _lies_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _waiting(descriptor: int, place: Path) -> Diagnostic:
    holder = os.pread(descriptor, 200, 0).decode("utf-8", "replace") or "another process"
    message = f"waiting for the lock of `{place}`: {holder} writes to the same place"
    return Diagnostic(
        code="BU013",
        message=message,
        severity=Severity.NOTE,
        help="choose another path with -o (of a download, with --download-dir)",
    )


def _unlockable(error: OSError, place: Path) -> BringupError:
    if error.errno in (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EBADF):
        message = f"the file system of `{place}` has no locks: {reason(error)}"
        return fail("BU013", message, help="choose a path on another file system with -o")
    return fail("BU901", f"cannot write next to `{place}`: {reason(error)}", help=ELSEWHERE)
