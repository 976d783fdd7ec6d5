"""What the readers of files have in common."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

from bringup.diagnostics import BringupError, fail

# https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md: a pointer's first line, and its largest size
LFS_MAGIC = b"version https://git-lfs.github.com/spec/v1"
LFS_BYTES = 1024


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object, unless a key stands in it twice."""
    made = dict(pairs)
    if len(made) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))
        raise ValueError(f"key `{twice}` stands twice in one object")
    return made


def strict_json(text: bytes) -> dict[str, Any]:
    """A JSON object. Raises ValueError for all else: bad UTF-8, bad JSON, repeated keys, deep nesting."""
    try:
        made = json.loads(text.decode(), object_pairs_hook=unique_keys)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(made, dict):
        raise ValueError(f"a JSON object is wanted, not a {type(made).__name__}")
    return cast(dict[str, Any], made)


def read_config(path: Path) -> dict[str, Any]:
    """A config.json. Raises BU202."""
    try:
        return strict_json(path.read_bytes())
    except ValueError as error:
        raise fail(
            "BU202",
            f"`{path}` is not readable as a config: {error}",
            help="take the file from the model's page again, or give another with --config FILE",
            file=str(path),
        ) from None


def refuse_lfs_pointer(path: Path) -> None:
    """Raises BU206 when a file is what `git clone` leaves where git-lfs is not installed."""
    with path.open("rb") as file:
        head = file.read(LFS_BYTES)
    if head.startswith(LFS_MAGIC):
        size = next((line[5:].decode() for line in head.splitlines() if line.startswith(b"size ")), "?")
        raise fail(
            "BU206",
            f"`{path}` is a git-lfs pointer ({path.stat().st_size} bytes), not the weights ({size} bytes)",
            help=f"run: git -C {path.parent} lfs install --local && git -C {path.parent} lfs pull",
            file=str(path),
        )


def truncated(path: Path, wanted: int) -> BringupError:
    """BU208: a header promises more bytes than the file has."""
    size = path.stat().st_size
    return fail(
        "BU208",
        f"`{path}` has {size} bytes; its header promises {wanted}: {wanted - size} are missing",
        help="the download or copy stopped early; fetch the file again",
        file=str(path),
    )


def some(names: Iterable[str], most: int = 5) -> str:
    """The first few names, in backticks."""
    listed = list(names)
    more = f" and {len(listed) - most} more" if len(listed) > most else ""
    return ", ".join(f"`{name}`" for name in listed[:most]) + more
