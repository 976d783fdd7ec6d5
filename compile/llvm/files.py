"""The object files of a bundle, and the file that describes them: `kernels.json`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from bringup.compile.llvm.ir.machine import Machine
from bringup.system.atomic import write_file

FILE, OBJECTS = "kernels.json", ("kernels.o", "elements.o", "threads.o")


@dataclass(frozen=True, slots=True, kw_only=True)
class Objects:
    """Describes the object files: their machine, the SHA-256 of each, and the digest of the source that emits them."""

    machine: Machine
    digests: tuple[str, ...]
    source: str

    def fit(self, host: Machine) -> bool:
        """Whether they run on the host and were emitted by this version of bringup."""
        return self.source == source_digest() and self.machine.runs_on(host)

    def read(self, folder: Path) -> list[bytes]:
        """The bytes of the object files in `folder`.

        Raises ValueError if a digest differs, because LLVM ends the process on an invalid object file.
        """
        if len(self.digests) != len(OBJECTS):
            raise ValueError(f"`{FILE}` has {len(self.digests)} digests, not {len(OBJECTS)}")
        found = [(folder / name).read_bytes() for name in OBJECTS]
        for name, code, digest in zip(OBJECTS, found, self.digests, strict=True):
            if _sha256(code) != digest:
                raise ValueError(f"`{name}` does not match its SHA-256 in `{FILE}`")
        return found


@cache
def source_digest() -> str:
    """SHA-256 of the Python files that emit kernels: the arguments of a kernel may differ between versions."""
    files = sorted(Path(__file__).parent.rglob("*.py"))
    return _sha256(b"\0".join(file.read_bytes() for file in files))


def write_objects(folder: Path, machine: Machine, objects: Sequence[bytes]) -> None:
    """Writes the object files, and the description that `read_description` reads."""
    for name, code in zip(OBJECTS, objects, strict=True):
        write_file(folder / name, code)
    data = {"triple": machine.triple, "cpu": machine.cpu, "features": machine.features, "source": source_digest()}
    write_file(folder / FILE, json.dumps(data | {"sha256": [_sha256(code) for code in objects]}).encode())


def read_description(folder: Path) -> Objects:
    """Reads `kernels.json`. Raises ValueError if `write_objects` cannot have written it."""
    try:
        data: dict[str, Any] = json.loads((folder / FILE).read_text("utf-8"))
        triple, cpu, source = (str(data[name]) for name in ("triple", "cpu", "source"))
        features, digests = (tuple(str(each) for each in data[name]) for name in ("features", "sha256"))
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"`{FILE}` was not written by `bringup compile`: {error}") from error
    return Objects(machine=Machine(triple=triple, cpu=cpu, features=features), digests=digests, source=source)


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
