"""The inputs of a conversion, and a check that the checkpoint's files have not changed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bringup.adapters.planning.plan import Plan
from bringup.compile.bundle.bundle_key import weights_inputs
from bringup.compile.bundle.contents import plan_hash
from bringup.compile.cache.file_identity import State, Unsettled, state_of
from bringup.compile.cache.store import Inputs
from bringup.compile.job import Job
from bringup.compile.targets.selection import Selection
from bringup.diagnostics import BringupError, fail


def inputs_digest(job: Job, plans: Sequence[Plan], layout: Selection | None, words: Sequence[object]) -> str:
    """The digest of everything that determines the output of a conversion, equal in every process; "" if unknown.

    It covers the inputs of a bundle's weights (`weights_inputs`: sources, tools, the checkpoint's bytes, the seed of
    dummy weights), the config, the plans of the ranks, `words` and, with `layout`, the target whose layout is written.
    It is unknown for a checkpoint in memory, source files that changed since this process began, large files that were
    written just now, and settings without an exact text.
    """
    try:
        weights = weights_inputs(job, 0, layout.registered.files if layout else ())
    except (OSError, Unsettled):  # a file that does not exist, or was written just now
        return ""
    settings: Inputs | None = layout.settings() if layout else {}
    if weights is None or settings is None:
        return ""
    config = repr(sorted(job.config.items()))
    text = json.dumps(
        [weights, settings, config, [plan_hash(plan) for plan in plans], *words], sort_keys=True, default=str
    )
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()


@dataclass(frozen=True, slots=True)
class SourceFiles:
    """The checkpoint's files that plans read, each with its state at the beginning, None if it does not exist."""

    states: Mapping[Path, State | None]

    @classmethod
    def of(cls, plans: Sequence[Plan]) -> SourceFiles:
        """The files in their current state."""
        files = {info.file for plan in plans for entry in plan.entries.values() for info in entry.tensors if info.file}
        return cls({file: _state(file) for file in sorted(files)})

    def check(self) -> None:
        """Raises BU207 for the first file that was written to, replaced or removed since the beginning."""
        for file, before in self.states.items():
            if (now := _state(file)) != before:
                raise _changed(file, "was removed" if now is None else "was written to or replaced")


def _state(file: Path) -> State | None:
    try:
        return state_of(file.stat())
    except OSError:
        return None


def _changed(file: Path, how: str) -> BringupError:
    message = f"`{file}` {how} while its tensors were read"
    return fail("BU207", message, help="let whatever writes the file finish, then run the same command again")
