"""Links the weights of another bundle instead of writing them. The store has their path, not their bytes."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bringup.compile.bundle.contents import write_weights
from bringup.compile.cache.file_identity import State, state_of
from bringup.compile.cache.store import Inputs, Store
from bringup.compile.job import Job
from bringup.diagnostics import Diagnostic
from bringup.progress import Stage
from bringup.system.atomic import remember, sha256

KIND = "weights"


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """Weights in a bundle: `summary` describes how they were obtained, `inputs` is None if they must not be linked."""

    summary: str
    inputs: Inputs | None
    digest: str
    seconds: float
    warnings: Sequence[Diagnostic] = ()

    def keep(self, store: Store, file: Path) -> None:
        """Stores their path, once they are at their final one."""
        if self.inputs:
            file = file.resolve()
            record = json.dumps({"path": str(file), "state": _state(file), "digest": self.digest}).encode()
            store.put(KIND, self.inputs, record, what=f"weights of {file.parent.name}", seconds=self.seconds)


def place_weights(
    job: Job, context: int, inputs: Inputs | None, place: Path, store: Store, stage: Stage, *, verified: bool = False
) -> Placed:
    """Links weights that were computed from these inputs, or writes them. `stage` receives the fraction written.

    Weights whose file has changed since then, also by a new link to it, are read and compared with their digest before
    they are linked; with `verified`, all are.
    """
    start = time.perf_counter()
    if inputs and (digest := _link(store, inputs, place, verified=verified)):
        summary = f"weights, {_megabytes(place)}, shared with the bundle that has them"
        return Placed(summary=summary, inputs=inputs, digest=digest, seconds=0.0)
    warnings: list[Diagnostic] = []
    write_weights(job, context, place, stage.advance, warnings.append)
    return Placed(
        summary=f"weights, {_megabytes(place)}",
        inputs=None if warnings else inputs,  # a bundle that links them should show the warnings too
        digest=sha256(place),
        seconds=time.perf_counter() - start,
        warnings=warnings,
    )


def _link(store: Store, inputs: Inputs, place: Path, *, verified: bool) -> str:
    """Links the weights. Two bundles then share one file, which neither writes to; across file systems it is copied.

    Returns the file's digest, "" if there is no such file.
    """
    cached = store.get(KIND, inputs)
    if cached is None:
        return ""
    words = json.loads(cached)
    file, digest = Path(words["path"]), str(words["digest"])
    try:
        before = _state(file)
        if (verified or before != words["state"]) and sha256(file, fresh=True) != digest:
            return ""
        try:
            os.link(file, place)
        except OSError:  # another file system, or one without links
            shutil.copyfile(file, place)
        if _content(_state(file)) != _content(before):
            place.unlink()
            return ""
        remember(place, digest)
    except OSError:  # it does not exist, or the disk is full, which writing the weights will report
        place.unlink(missing_ok=True)
        return ""
    return digest


def _state(file: Path) -> State:
    return state_of(file.stat())


def _content(state: State) -> State:
    """Stat fields that a write to a file changes; a link to it changes only the change time."""
    size, written, _, *place = state
    return [size, written, *place]


def _megabytes(file: Path) -> str:
    return f"{file.stat().st_size / 1e6:,.1f} MB"
