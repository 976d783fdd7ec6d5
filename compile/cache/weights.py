"""Weights that another bundle already has: linked, not made again. The store keeps where they lie, not their bytes."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bringup.compile.cache.store import Inputs, Store
from bringup.compile.contents import write_weights
from bringup.compile.disk import remember, sha256
from bringup.compile.job import Job
from bringup.diagnostics import Diagnostic
from bringup.progress import Stage

KIND = "weights"


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """Weights at their place: `told` says how they came there, `inputs` is None when nobody should link them."""

    told: str
    inputs: Inputs | None
    seconds: float
    warnings: Sequence[Diagnostic] = ()

    def keep(self, store: Store, file: Path) -> None:
        """Remembers where they are, once they lie where they will stay."""
        if self.inputs:
            file = file.resolve()
            kept = json.dumps({"path": str(file), "state": _state(file), "digest": sha256(file)}).encode()
            store.put(KIND, self.inputs, kept, what=f"weights of {file.parent.name}", seconds=self.seconds)


def place_weights(job: Job, context: int, inputs: Inputs | None, place: Path, store: Store, stage: Stage) -> Placed:
    """Links the weights that were made from these inputs, or writes them. `stage` hears the share that is written."""
    start = time.perf_counter()
    if inputs and _link(store, inputs, place):
        told = f"weights, {_megabytes(place)}, shared with the bundle that has them"
        return Placed(told=told, inputs=inputs, seconds=0.0)
    warnings: list[Diagnostic] = []
    write_weights(job, context, place, stage.advance, warnings.append)
    return Placed(
        told=f"weights, {_megabytes(place)}",
        inputs=None if warnings else inputs,  # whoever links them should be warned too
        seconds=time.perf_counter() - start,
        warnings=warnings,
    )


def _link(store: Store, inputs: Inputs, place: Path) -> bool:
    """Two bundles then share one file on disk, which neither of them writes to; across file systems it is copied."""
    kept = store.get(KIND, inputs)
    if kept is None:
        return False
    words = json.loads(kept)
    file = Path(words["path"])
    try:
        if _state(file) != words["state"]:
            return False
        try:
            os.link(file, place)
            remember(place, words["digest"])
        except OSError:  # another file system, or one without links
            shutil.copyfile(file, place)
            return _state(file) == words["state"]
    except OSError:  # it is gone, or there is no room for it: making it anew will tell
        place.unlink(missing_ok=True)
        return False
    return True


def _state(file: Path) -> list[int]:
    """What changes when a file is written to or replaced."""
    stat = file.stat()
    return [stat.st_size, stat.st_mtime_ns, stat.st_ino]


def _megabytes(file: Path) -> str:
    return f"{file.stat().st_size / 1e6:,.1f} MB"
