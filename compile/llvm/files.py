"""A bundle's object files, and what says for which processor they are."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from bringup.compile.llvm.ir.machine import Machine
from bringup.system.atomic import write_file

FILE, OBJECTS = "kernels.json", ("kernels.o", "elements.o")


@cache
def source_digest() -> str:
    """SHA-256 of the files that kernels are emitted by: another version's may take other arguments."""
    files = sorted(Path(__file__).parent.rglob("*.py"))
    return hashlib.sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest()


def write_objects(folder: Path, machine: Machine, objects: Iterable[bytes]) -> None:
    """Writes the object files of all kernels, and for which machine they are."""
    for name, code in zip(OBJECTS, objects, strict=True):
        write_file(folder / name, code)
    data = {"triple": machine.triple, "cpu": machine.cpu, "features": machine.features, "source": source_digest()}
    write_file(folder / FILE, json.dumps(data).encode())


def read_machine(folder: Path, host: Machine) -> Machine | None:
    """The machine that a bundle's object files are for; None where they do not run on the host.

    That is where they need features that it has not, and where another version of the kernels wrote them. Raises
    ValueError for a file that `write_objects` does not write.
    """
    try:
        data: dict[str, Any] = json.loads((folder / FILE).read_text("utf-8"))
        machine = Machine(triple=data["triple"], cpu=data["cpu"], features=tuple(map(str, data["features"])))
        source = data["source"]
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"`{FILE}` is not what `bringup compile` writes: {error}") from error
    return machine if source == source_digest() and machine.runs_on(host) else None


def read_objects(folder: Path) -> list[bytes]:
    return [(folder / name).read_bytes() for name in OBJECTS]
