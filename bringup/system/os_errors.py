"""Errors of the operating system as diagnostics: a full disk, a lack of memory or of descriptors, a file that cannot be
written."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

from bringup.diagnostics import BringupError, fail

_FULL = {
    errno.ENOSPC: "no space is left on the disk of {}",
    errno.EDQUOT: "the disk quota for {} is used up",
    errno.EFBIG: "a file in {} would be larger than this process may write",
}
# Messages of torch, IREE, LLVM and the dynamic loader in place of a MemoryError, in lower case.
_SHORT = (
    "can't allocate memory", "cannot allocate memory", "not enough memory", "out of memory", "bad_alloc",
    "resource_exhausted", "can't start new thread", "failed to map segment", "memory allocation",
    "ended with code -9",  # the kernel kills the largest process if there is no memory
)  # fmt: skip
_PLAIN = {errno.ELOOP: "its symbolic links form a loop"}  # plainer than the system's messages
_NO_SPACE = os.strerror(errno.ENOSPC).lower()
_ROOM = "free some space, or choose a path on another disk with -o"
ELSEWHERE = "choose a path in a folder that you may write to"
_HELP = "close other programs, raise the limit (`ulimit -v`), or compile on a larger machine; --dry-run prints the need"


def refused(error: BaseException, place: Path | None = None) -> BringupError | None:
    """BU901 for too many open files, BU902 for a full disk, BU903 for a lack of memory, None for others; `place` is the
    path being written.
    """
    for cause in _causes(error):
        if isinstance(cause, OSError) and cause.errno in _FULL:
            return _full(cause.errno, place or (Path(os.fsdecode(cause.filename)) if cause.filename else None))
        if _reports(cause, _NO_SPACE):
            return _full(errno.ENOSPC, place)
        if isinstance(cause, OSError) and cause.errno == errno.EMFILE:
            most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
            message = f"too many open files: the limit of this process is {most:,}"
            return fail("BU901", message, help="raise the limit: `ulimit -n 1024`")
        if isinstance(cause, MemoryError) or getattr(cause, "errno", None) == errno.ENOMEM or _reports(cause, *_SHORT):
            what = _reason(str(cause).strip().splitlines())
            return fail("BU903", f"out of memory{f': {what}' if what else ''}", help=_HELP)
    return None


def _reason(lines: list[str]) -> str:
    """The line of a message that reports the lack of memory: numpy's begins with advice on its installation."""
    return next((line.strip() for line in lines if any(word in line.lower() for word in _SHORT)), "".join(lines[:1]))


def _full(code: int, place: Path | None) -> BringupError:
    """BU902. The error of a stream, such as stdout, has no path."""
    free = free_bytes(place) if place and code == errno.ENOSPC else None
    message = f": {free:,} bytes are free" if free is not None else ""
    return fail("BU902", _FULL[code].format(f"`{place}`" if place else "the output") + message, help=_ROOM)


def _reports(error: BaseException, *words: str) -> bool:
    """Whether the message of a library, or in a tool's log, reports such an error."""
    is_text = isinstance(error, RuntimeError | ImportError | SystemError) or getattr(error, "errno", 0) is None
    text = f"{error} {getattr(error, 'log', '')}".lower() if is_text else ""
    return any(word in text for word in words)


def unwritable(error: OSError, path: Path) -> BringupError:
    """BU901, BU902 or BU903 for an error of a write to `path`."""
    return refused(error, path.parent) or fail("BU901", f"cannot write `{path}`: {reason(error)}", help=ELSEWHERE)


def reason(error: BaseException) -> str:
    """The message of an error; that of the operating system without its number and the path."""
    if not isinstance(error, OSError) or not error.strerror:
        return str(error)
    text = str(error.strerror)
    return _PLAIN.get(error.errno or 0, text[:1].lower() + text[1:])


def free_bytes(place: Path) -> int | None:
    """Bytes that this user may still write on the disk of `place`; None if the file system does not report it."""
    existing = next((path for path in (place, *place.absolute().parents) if path.exists()), Path("/"))
    stat = os.statvfs(existing)
    blocks = stat.f_bavail if os.geteuid() else stat.f_bfree
    return blocks * stat.f_frsize if stat.f_blocks else None


def need_room(folder: Path, nbytes: int) -> None:
    """Raises BU902 if `nbytes` do not fit on the disk of `folder`."""
    free = free_bytes(folder)
    if free is not None and free < nbytes:
        message = f"{nbytes:,} bytes are to be written, and the disk of `{folder}` has {free:,} bytes free"
        raise fail("BU902", message, help=_ROOM)


@contextmanager
def refusals(place: Path | None = None) -> Generator[None]:
    """Converts exceptions in the block by `refused`."""
    try:
        yield
    except BringupError:
        raise
    except Exception as error:
        if known := refused(error, place):
            raise known from error
        raise


def _causes(error: BaseException) -> Iterator[BaseException]:
    """An exception and those that it was raised from or while handling."""
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        yield cause
        cause = cause.__cause__ or cause.__context__
