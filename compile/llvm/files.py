"""A bundle's object files, and what says for which processor they are."""

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
    """The object files: their machine, SHA-256 of each, and that of the Python files that emitted them."""

    machine: Machine
    digests: tuple[str, ...]
    source: str

    def fit(self, host: Machine) -> bool:
        """Whether they run on the host, and are what this version of bringup would compile."""
        return self.source == source_digest() and self.machine.runs_on(host)

    def read(self, folder: Path) -> list[bytes]:
        """Their bytes. Raises ValueError for a file that has other ones: LLVM ends the process over what is none."""
        if len(self.digests) != len(OBJECTS):
            raise ValueError(f"`{FILE}` has {len(self.digests)} digests, not {len(OBJECTS)}")
        found = [(folder / name).read_bytes() for name in OBJECTS]
        for name, code, digest in zip(OBJECTS, found, self.digests, strict=True):
            if _sha256(code) != digest:
                raise ValueError(f"`{name}` has other bytes than `{FILE}` says")
        return found


@cache
def source_digest() -> str:
    """SHA-256 of the files that kernels are emitted by: those of another version may take other arguments."""
    files = sorted(Path(__file__).parent.rglob("*.py"))
    return _sha256(b"\0".join(file.read_bytes() for file in files))


def write_objects(folder: Path, machine: Machine, objects: Sequence[bytes]) -> None:
    """Writes the object files, and what `read_description` reads."""
    for name, code in zip(OBJECTS, objects, strict=True):
        write_file(folder / name, code)
    data = {"triple": machine.triple, "cpu": machine.cpu, "features": machine.features, "source": source_digest()}
    write_file(folder / FILE, json.dumps(data | {"sha256": [_sha256(code) for code in objects]}).encode())


def read_description(folder: Path) -> Objects:
    """Raises ValueError for a file that `write_objects` does not write."""
    try:
        data: dict[str, Any] = json.loads((folder / FILE).read_text("utf-8"))
        triple, cpu, source = (str(data[name]) for name in ("triple", "cpu", "source"))
        features, digests = (tuple(str(each) for each in data[name]) for name in ("features", "sha256"))
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"`{FILE}` is not what `bringup compile` writes: {error}") from error
    return Objects(machine=Machine(triple=triple, cpu=cpu, features=features), digests=digests, source=source)


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
