"""Atomic and durable writes of files, and the atomic exchange of two names."""

from __future__ import annotations

import ctypes
import errno
import hashlib
import os
from collections.abc import Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from bringup.progress import Silent
from bringup.system.lock import locked, sibling_path
from bringup.system.os_errors import unwritable

Bytes = bytes | memoryview
State = tuple[int, ...]

_digests: dict[State, str] = {}  # of files that this process wrote, or whose digest was passed to `remember`


class NewFile:
    """A file that is being written. `digest` is its SHA-256 once the block of `create` has ended."""

    def __init__(self, path: Path, descriptor: int, pool: ThreadPoolExecutor) -> None:
        self.path, self.digest, self.nbytes = path, "", 0
        self._descriptor, self._pool = descriptor, pool
        self._sha = hashlib.sha256()
        self._hashed: Future[None] | None = None

    def write(self, data: Bytes) -> None:
        """Appends bytes, which must not change before the next `write`: a thread hashes them meanwhile.

        hashlib and the operating system both release Python's lock, so this uses two processors.
        """
        self.settle()
        self._hashed = self._pool.submit(self._sha.update, data)
        rest = memoryview(data).cast("B")
        while rest:
            rest = rest[os.write(self._descriptor, rest) :]
        self.nbytes += memoryview(data).nbytes

    def settle(self) -> None:
        """Waits until the bytes of the last `write` are no longer needed."""
        if self._hashed:
            self._hashed.result()
            self._hashed = None

    def finish(self) -> None:
        self.settle()
        os.fsync(self._descriptor)
        self.digest = _digests[_state(self._descriptor)] = self._sha.hexdigest()


@contextmanager
def create(path: Path) -> Generator[NewFile]:
    """A new file at `path`, on disk when the block ends; removed if it fails. Raises BU901, BU902.

    An OSError of the block itself, such as one of reading, is not converted.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise unwritable(error, path) from error
    try:
        with ThreadPoolExecutor(1) as pool:
            file = NewFile(path, descriptor, pool)
            yield file
            file.finish()
    except BaseException as error:
        path.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename is None:
            raise unwritable(error, path) from error
        raise
    finally:
        os.close(descriptor)


def write_file(path: Path, data: Bytes) -> None:
    """Writes a complete file, or leaves the old one. Raises BU901, BU902."""
    with locked(path, Silent()):
        part = sibling_path(path, "part")
        with create(part) as file:
            file.write(data)
        try:
            part.replace(path)
        except OSError as error:
            part.unlink(missing_ok=True)
            raise unwritable(error, path) from error


def sha256(path: Path, *, fresh: bool = False) -> str:
    """A file's digest. One that this process wrote is not read again, unless `fresh`."""
    with path.open("rb") as file:
        known = None if fresh else _digests.get(_state(file.fileno()))
        return known or hashlib.file_digest(file, "sha256").hexdigest()


def remember(path: Path, digest: str) -> None:
    """Stores the known digest of a file."""
    with path.open("rb") as file:
        _digests[_state(file.fileno())] = digest


def _state(file: int) -> State:
    """Stat fields that change if a file is written or replaced; the change time (ctime) cannot be set back."""
    stat = os.fstat(file)
    return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns


def flush(path: Path) -> None:
    """Flushes a file's bytes, or a folder's names, to disk. Some file systems do not support it for a folder."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def flush_tree(folder: Path) -> None:
    """Flushes a folder and everything in it to disk."""
    for path in sorted(folder.rglob("*"), reverse=True):  # the contents of a folder before the folder
        flush(path)
    flush(folder)


def exchange(one: Path, other: Path) -> bool:
    """Exchanges two names atomically; False if the file system or the kernel does not support that.

    renameat2(2) of Linux 3.15. Raises OSError as a rename would.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "renameat2"):
        return False
    at_cwd, flag = -100, 2  # AT_FDCWD of <fcntl.h>, RENAME_EXCHANGE of <linux/fs.h>
    if libc.renameat2(at_cwd, os.fsencode(one), at_cwd, os.fsencode(other), flag) == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):
        return False
    raise OSError(code, os.strerror(code), str(one), None, str(other))
