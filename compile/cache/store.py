"""Results of compiles, cached by a hash of their inputs.

An entry is one file, KIND/KEY under the root: a line of JSON (its name, its inputs, the SHA-256 of the payload), then
the payload. KEY is the SHA-256 of the inputs, so an entry is never changed, only written atomically or removed: any
number of processes share a store without locks.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from bringup.adapters.sources.cache_dirs import cache_folder

Inputs = Mapping[str, str]

LIMIT = 1 << 30  # bytes to which a store is trimmed automatically


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """The first line of an entry; `seconds` is the time that its computation took."""

    kind: str
    key: str
    what: str
    seconds: float
    created_at: float  # seconds since 1970
    inputs: Inputs
    digest: str
    path: Path
    nbytes: int = 0
    used: float = 0.0  # time of the last use, in seconds since 1970


def default_store() -> Store:
    """The user's store: $BRINGUP_COMPILE_CACHE, else `compile` in bringup's cache folder."""
    chosen = os.environ.get("BRINGUP_COMPILE_CACHE")
    return Store(Path(chosen).expanduser() if chosen else cache_folder("compile"))


class Store:
    """A folder of entries. A read never fails, and no compile fails because the store cannot be written.

    `problem` is the reason why the latest write failed, "" for none.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.problem = ""

    def get(self, kind: str, inputs: Inputs) -> bytes | None:
        """The payload computed from these inputs, or None. A damaged entry counts as absent and is removed."""
        path = self.root / kind / key_of(inputs)
        try:
            head, _, payload = path.read_bytes().partition(b"\n")
        except OSError:
            return None
        entry = _parsed(path, head)
        if entry is None or hashlib.sha256(payload).hexdigest() != entry.digest:
            with suppress(OSError):
                path.unlink()
            return None
        with suppress(OSError):  # a read-only store can be read too
            os.utime(path)
        return payload

    def put(self, kind: str, inputs: Inputs, payload: bytes, *, what: str, seconds: float) -> None:
        """Stores a payload."""
        key, digest = key_of(inputs), hashlib.sha256(payload).hexdigest()
        head = {"what": what, "seconds": round(seconds, 3), "made": time.time(), "inputs": dict(inputs)}
        line = json.dumps(head | {"digest": digest}).encode() + b"\n"
        folder = self.root / kind
        temporary = ""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            descriptor, temporary = tempfile.mkstemp(prefix=".", dir=folder)
            with os.fdopen(descriptor, "wb") as file:
                file.write(line + payload)
            Path(temporary).replace(folder / key)
        except OSError as error:
            self.problem = f"{error.strerror}: `{folder}`"
            if temporary:
                Path(temporary).unlink(missing_ok=True)

    def entries(self) -> Iterator[Entry]:
        """Every entry, the most recently used first. Only first lines are read."""
        found: list[Entry] = []
        for path in self.root.glob("*/[!.]*"):
            with suppress(OSError), path.open("rb") as file:
                if entry := _parsed(path, file.readline().removesuffix(b"\n")):
                    found.append(entry)
        yield from sorted(found, key=lambda entry: -entry.used)

    def remove(self, entries: list[Entry]) -> int:
        """Removes entries; returns the number of bytes freed. Raises OSError if that is not permitted."""
        for entry in entries:
            entry.path.unlink(missing_ok=True)
        return sum(entry.nbytes for entry in entries)

    def trim(self, limit: int = LIMIT) -> None:
        """Removes the least recently used entries until the others fit the limit; and files of killed processes."""
        with suppress(OSError):
            stale = time.time() - 3600
            for path in self.root.glob("*/.*"):
                if path.stat().st_mtime < stale:
                    path.unlink(missing_ok=True)
            total = 0
            for entry in self.entries():
                total += entry.nbytes
                if total > limit:
                    entry.path.unlink(missing_ok=True)


def key_of(inputs: Inputs) -> str:
    """The file name: the hash of the inputs."""
    return hashlib.sha256(json.dumps(dict(inputs), sort_keys=True).encode()).hexdigest()


def _parsed(path: Path, head: bytes) -> Entry | None:
    try:
        words = json.loads(head)
        stat = path.stat()
        return Entry(
            kind=path.parent.name,
            key=path.name,
            what=str(words["what"]),
            seconds=float(words["seconds"]),
            created_at=float(words["made"]),
            inputs={str(name): str(value) for name, value in words["inputs"].items()},
            digest=str(words["digest"]),
            path=path,
            nbytes=stat.st_size,
            used=stat.st_mtime,
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
