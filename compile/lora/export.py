"""A model with a LoRA merged in, in the published layout."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from bringup.adapters.lora.load import Loaded
from bringup.adapters.planning.plan import Entry
from bringup.compile.convert.export import Exported, export
from bringup.compile.job import Job
from bringup.compile.lora.values import refuse_wrong_values
from bringup.compile.lora.weights import merged_array
from bringup.diagnostics import fail
from bringup.progress import Progress

if TYPE_CHECKING:
    import numpy as np


def merge_lora(
    job: Job, loaded: Loaded, out: str | Path, *, force: bool = False, progress: Progress | None = None
) -> Exported:
    """Writes the checkpoint of `job` with W + ΔW in place of W, in its own names, files and dtypes.

    Sums are taken in float32 and rounded once. Raises what is wrong with the adapter, BU169 for one that changes
    nothing, BU171 for one that changes a tensor of which two parameters are read, and what `export` raises.
    """
    loaded.raise_if_errors()
    _refuse_ties(job, loaded)
    refuse_wrong_values(job, loaded)

    def read(name: str, entry: Entry) -> np.ndarray:
        return merged_array(job, loaded, name, entry)

    return export(job, out, read=read, force=force, progress=progress)


def _refuse_ties(job: Job, loaded: Loaded) -> None:
    """BU171: a head that is tied to an embedding has no tensor of its own to be changed in."""
    for name, first in job.plan.aliases().items():
        if not loaded.lora.sites.keys().isdisjoint((name, first)):
            changed, other = (name, first) if name in loaded.lora.sites else (first, name)
            raise fail(
                "BU171",
                f"`{changed}` and `{other}` are one tensor in this checkpoint, and the adapter changes the first alone",
                help="apply the adapter without merging it, or untie the two in the base's checkpoint first",
                parameter=changed,
            )
