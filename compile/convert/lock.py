"""A plan in a file: the sources of each parameter, one on each line, so that reviews and CI show changes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from bringup.adapters.checkpoints.bounded_json import read_json
from bringup.adapters.planning.plan import Entry
from bringup.compile.bundle.contents import Functions, movement, plan_hash
from bringup.compile.check.checker import check_job
from bringup.compile.job import Job
from bringup.diagnostics import BringupError, Diagnostic, fail
from bringup.graphs.core.axes import show
from bringup.grouping import grouped
from bringup.system.atomic import write_file

SCHEMA = 1


def lock_of(job: Job, request: Mapping[str, Any]) -> dict[str, Any]:
    """The lock of a job: `request` has the user's arguments, to plan it again from. Raises the findings of `check`."""
    check_job(job).raise_if_errors()
    functions = Functions()
    return {
        "schema": SCHEMA,
        "request": dict(request),
        "model": job.family.name,
        "dtype": job.graph.dtype,
        "plan": plan_hash(job.plan),
        "parameters": {name: _parameter(entry, functions) for name, entry in job.plan.entries.items()},
        "dropped": {name: drop.why for name, drop in job.plan.dropped.items()},
    }


def _parameter(entry: Entry, functions: Functions) -> dict[str, Any]:
    """`copies` is a digest of the tensors in order, the position of each element, and the computed values."""
    shape, dtype = entry.declared.storage
    alike: dict[str, list[str]] = {}
    for info in entry.tensors:
        alike.setdefault(f"{info.dtype} {list(info.shape)}", []).append(info.name)
    copies = repr(movement(entry, functions)).encode()
    return {
        "axes": show(entry.declared.axes),
        "shape": list(shape),
        "dtype": dtype,
        "sources": [f"{', '.join(grouped(names))} {kind}" for kind, names in alike.items()],
        "copies": hashlib.sha256(copies).hexdigest()[:16],
    }


def write_lock(lock: Mapping[str, Any], file: Path) -> None:
    """Writes one parameter on each line. Raises BU901 and BU902."""
    head = {key: value for key, value in lock.items() if key not in ("parameters", "dropped")}
    text = json.dumps(head, indent=2)[:-2]
    for key in ("parameters", "dropped"):
        rows = ",\n".join(f"    {json.dumps(name)}: {json.dumps(value)}" for name, value in lock[key].items())
        text += f',\n  "{key}": {{\n{rows}\n  }}' if rows else f',\n  "{key}": {{}}'
    write_file(file, f"{text}\n}}\n".encode())


def read_lock(file: Path) -> dict[str, Any]:
    """Reads the output of `write_lock`. Raises BU044 for another file."""
    try:
        lock = read_json(file)
    except (ValueError, BringupError) as error:
        raise _no_lock(file) from error
    if lock.get("schema") != SCHEMA or not all(isinstance(lock.get(key), dict) for key in ("parameters", "dropped")):
        raise _no_lock(file)
    return lock


def is_lock(file: Path) -> bool:
    """Whether a file looks like a lock."""
    if not file.is_file() or file.suffix in (".safetensors", ".gguf", ".bin", ".pt", ".pth", ".npz"):
        return False
    with file.open("rb") as opened:
        return opened.read(1) == b"{"


def _no_lock(file: Path) -> BringupError:
    return fail("BU044", f"`{file}` was not written by `bringup lock`", help="write it: bringup lock MODEL -o FILE")


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The changes from one lock to another, as (names, change); parameters with the same change are grouped."""
    found: dict[str, list[str]] = {}
    for key in ("model", "dtype"):
        if old.get(key) != new.get(key):
            found.setdefault(f"{old.get(key)} → {new.get(key)}", []).append(key)
    for key, word in (("parameters", "parameter"), ("dropped", "dropped tensor")):
        before, after = old[key], new[key]
        for name in (name for name in before if name not in after):
            found.setdefault(f"{word} is gone", []).append(name)
        for name in (name for name in after if name not in before):
            found.setdefault(f"{word} is new", []).append(name)
        for name in (name for name in before if name in after and before[name] != after[name]):
            found.setdefault(_change(before[name], after[name]), []).append(name)
    return [(", ".join(grouped(names)), change) for change, names in found.items()]


def _change(old: Any, new: Any) -> str:
    """The difference of one parameter, without its name."""
    if not isinstance(old, dict) or not isinstance(new, dict):
        return f"{old} → {new}"
    before, after = cast("dict[str, Any]", old), cast("dict[str, Any]", new)
    changes = [
        f"{key} {before.get(key)} → {after.get(key)}"
        for key in ("axes", "shape", "dtype")
        if before.get(key) != after.get(key)
    ]
    if before.get("sources") != after.get("sources"):
        changes.append("reads other tensors")
    if not changes and before.get("copies") != after.get("copies"):
        changes.append("elements go to other places, or other values are computed")
    return ", ".join(changes)


def check_lock(old: Mapping[str, Any], new: Mapping[str, Any], file: str) -> Sequence[Diagnostic]:
    """BU141, once for each change."""
    help = "if it is intended, write the lock again: bringup lock … -o " + file
    return [
        Diagnostic(code="BU141", message=f"`{names}`: {change}", help=help, parameter=names, file=file)
        for names, change in differences(old, new)
    ]
