"""Functions that the readers of files share."""

from __future__ import annotations

import os
import stat
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Protocol, cast

from bringup.diagnostics import BringupError, fail
from bringup.system.os_errors import reason, refused

# https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md: a pointer's first line, and its largest size
LFS_MAGIC = b"version https://git-lfs.github.com/spec/v1"
LFS_BYTES = 1024

KINDS = {
    stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device", stat.S_IFBLK: "a device",
}  # fmt: skip


@contextmanager
def opened(path: Path) -> Generator[BinaryIO]:
    """Opens a regular file for reading. Raises BU233 for all others: a pipe would block, and a device may never end.

    For errors of the system, such as too many open files, raises BU901 to BU903.
    """
    try:
        kind = stat.S_IFMT(path.stat().st_mode)
        if kind != stat.S_IFREG:
            raise unreadable(path, f"is {KINDS.get(kind, 'no file')}")
        file = path.open("rb")
    except (OSError, ValueError) as error:  # ValueError: a path with a NUL
        raise refused(error) or unreadable(path, f"cannot be opened: {reason(error)}") from None
    with file:
        try:
            yield file
        except OSError as error:
            raise refused(error) or unreadable(path, f"cannot be read: {reason(error)}") from error


def is_local(path: object) -> bool:
    """Whether a path is local, and not an object for a file or folder behind HTTP."""
    return isinstance(path, Path)


class _Announced(Protocol):
    """An object for a file behind HTTP."""

    def expect(self, spans: Iterable[tuple[int, int]]) -> None: ...


def expect(path: Path, spans: Iterable[tuple[int, int]]) -> None:
    """Announces small reads of a file, each as first byte and number of bytes.

    A file behind HTTP requests adjacent ones together; for a local file this does nothing.
    """
    if not is_local(path):
        cast("_Announced", path).expect(spans)


def entries(folder: Path) -> list[str]:
    """The names in a folder, sorted; for a folder behind HTTP the known ones. Raises OSError."""
    return sorted(os.listdir(folder) if is_local(folder) else getattr(folder, "names"))  # noqa: B009, PTH208


def head_of(path: Path, size: int) -> bytes:
    """The first bytes of a file, b"\\0" of an empty one; b"" for a folder. Raises BU233 for one that cannot be read."""
    if not path.is_dir():
        with opened(path) as file:
            return file.read(size) or b"\0"
    if is_local(path) and not os.access(path, os.R_OK | os.X_OK):
        raise unreadable(path, "cannot be read: permission denied")
    return b""


def is_named(path: Path) -> bool:
    """Whether a path names a file, or locally a folder, a pipe or a broken link, which `opened` rejects."""
    return path.is_file() or (is_local(path) and os.path.lexists(path))


def unreadable(path: Path, message: str) -> BringupError:
    """BU233 for a file that cannot be read."""
    help = "name a local file that you may read, or a link to one"
    return fail("BU233", f"`{path}` {message}", help=help, file=str(path))


def refuse_lfs_pointer(path: Path) -> None:
    """Raises BU206 for a pointer file, which `git clone` leaves if git-lfs is not installed."""
    with opened(path) as file:
        head = file.read(LFS_BYTES)
    if head.startswith(LFS_MAGIC):
        size = next((line[5:].decode(errors="replace") for line in head.splitlines() if line[:5] == b"size "), "?")
        raise fail(
            "BU206",
            f"`{path}` is a git-lfs pointer ({path.stat().st_size} bytes), not the weights ({size} bytes)",
            help=f"run: git -C {path.parent} lfs install --local && git -C {path.parent} lfs pull",
            file=str(path),
        )


def too_short(path: Path) -> str:
    """Why a file of less than 8 bytes, the shortest start of any format, has no header; "" for a longer one."""
    size = path.stat().st_size
    return "" if size >= 8 else f"the file has only {size} bytes" if size else "the file is empty"


PAGE = "download it again: the server sent a message in place of the file"
# By the first bytes of a file: what it is, and the fix if its name states another format.
CONTENTS = (
    (b"PK\x03\x04", "a zip file, as torch.save writes", "give it the name of its format, such as pytorch_model.bin"),
    (b"GGUF", "a GGUF file", "give it a name that ends in .gguf"),
    (b"\x1f\x8b", "a gzip file", "unpack it with gunzip"),
    (b"<!", "a web page", PAGE), (b"<html", "a web page", PAGE), (b"<?xml", "an XML text", PAGE),
)  # fmt: skip
SAFETENSORS = ("a safetensors file", "give it a name that ends in .safetensors")


def other_content(path: Path) -> tuple[str, str] | None:
    """What a file is that is no safetensors file, by its first bytes, and the fix; None if they show no format."""
    with opened(path) as file:
        head = file.read(max(len(start) for start, _, _ in CONTENTS))
    return next(((what, help) for start, what, help in CONTENTS if head.startswith(start)), None)


def is_safetensors(path: Path) -> bool:
    """Whether a file begins as a safetensors file: with the length of a header that it has, and an object."""
    with opened(path) as file:
        head = file.read(9)
    return head[8:] == b"{" and int.from_bytes(head[:8], "little") <= path.stat().st_size - 8


def truncated(path: Path, wanted: int) -> BringupError:
    """BU208: a header declares more bytes than the file has."""
    size = path.stat().st_size
    return fail(
        "BU208",
        f"`{path}` has {size} bytes; its header promises {wanted}: {wanted - size} are missing",
        help="the download or copy stopped early; fetch the file again",
        file=str(path),
    )
