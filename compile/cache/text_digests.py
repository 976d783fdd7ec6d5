"""Digests of source files, complete or without some functions' bodies. A file is read again after it has changed."""

from __future__ import annotations

import ast
import hashlib
import os
from collections.abc import Iterator
from importlib.util import cache_from_source
from pathlib import Path

from bringup import STARTED

_TICK = 0.02  # seconds by which a file system's clock may lag

State = tuple[int, int, int, int]

# By path as a text: the hash of a Path is computed in Python, and the files of a key are many.
_digests: dict[tuple[str, frozenset[str]], tuple[State, str]] = {}
_trees: dict[str, tuple[State, str, ast.Module]] = {}
_without_stale_bytecode: dict[str, State] = {}


def digest(text: str) -> str:
    """SHA-256 of a text; a path in it may be invalid UTF-8 (PEP 383)."""
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()


class Untrusted(Exception):
    """A source file that may not be what this process runs."""


def digest_of(file: str | Path, left_out: frozenset[str] = frozenset()) -> str:
    """The digest of a file's bytes, or of its text without the bodies of some functions, by qualified name.

    Raises Untrusted for a file that changed since this process began, or that is newer than the bytecode that Python
    uses for it; OSError for one that cannot be read, ValueError for one that is not Python.
    """
    place = str(file)
    state = _state(place)
    known = _digests.get((place, left_out))
    if known and known[0] == state:
        return known[1]
    data = "\n".join(_lines(Path(place), left_out)).encode() if left_out else Path(place).read_bytes()
    digest = hashlib.sha256(data).hexdigest()[:16]
    _digests[place, left_out] = state, digest
    return digest


def parsed(file: Path) -> tuple[str, ast.Module]:
    """A file's text and its syntax tree. Raises as `digest_of` does."""
    place = str(file)
    state = _state(place)
    known = _trees.get(place)
    if known is None or known[0] != state:
        text = file.read_text("utf-8")
        known = _trees[place] = state, text, ast.parse(text)
    return known[1:]


def _state(place: str) -> State:
    found = os.stat(place)  # noqa: PTH116  takes half the time of Path.stat
    state = found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino
    if max(found.st_mtime, found.st_ctime) > STARTED - _TICK:
        raise Untrusted(place)
    if _without_stale_bytecode.get(place) != state:  # bytecode that is written later is newer than the file
        if _has_stale_bytecode(place, found):
            raise Untrusted(place)
        _without_stale_bytecode[place] = state
    return state


def _has_stale_bytecode(file: str, found: os.stat_result) -> bool:
    """Whether Python uses older bytecode for a file: it compares sizes, and times in seconds.

    https://docs.python.org/3/reference/import.html#cached-bytecode-invalidation; the header's four words are a magic
    number, flags, the time and the size, as in `importlib._bootstrap_external._classify_pyc`.
    """
    if not file.endswith(".py"):
        return False
    place = Path(cache_from_source(file))
    try:
        if place.stat().st_mtime_ns >= found.st_mtime_ns:
            return False
        head = place.read_bytes()[:16]
    except OSError:
        return False
    flags, time, size = (int.from_bytes(head[at : at + 4], "little") for at in (4, 8, 12))
    return flags == 0 and time == int(found.st_mtime) & 0xFFFFFFFF and size == found.st_size & 0xFFFFFFFF


def _lines(file: Path, left_out: frozenset[str]) -> Iterator[str]:
    text, tree = parsed(file)
    gone = {line for name, lines in _bodies(tree, "") if name in left_out for line in lines}
    yield from (line for number, line in enumerate(text.splitlines(), 1) if number not in gone)


def _bodies(node: ast.AST, prefix: str) -> Iterator[tuple[str, range]]:
    """Qualified name and lines of every function's body."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef):
            yield prefix + child.name, range(child.body[0].lineno, (child.end_lineno or child.lineno) + 1)
        elif isinstance(child, ast.ClassDef):
            yield from _bodies(child, f"{prefix}{child.name}.")
