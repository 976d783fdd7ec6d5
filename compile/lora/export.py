"""A model with a merged LoRA, in the published layout."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from bringup.adapters.lora.factors import Lora
from bringup.adapters.lora.load import Loaded
from bringup.adapters.planning.plan import Entry
from bringup.compile.convert.export import export
from bringup.compile.convert.published_files import Exported
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
    """Writes the checkpoint of `job` with W + ΔW in place of W, with its own names, files and dtypes.

    Sums are computed in float32 and rounded once. Raises the errors of the adapter, BU169 for one without effect, BU171
    for one that changes one of two parameters that are read from one tensor, BU174 for a sum out of the range of its
    tensor's dtype, and the errors of `export`.
    """
    loaded.raise_if_errors()
    alike = _equal_parameters(job, loaded)
    refuse_wrong_values(job, loaded)

    def read(name: str, entry: Entry) -> np.ndarray:
        return merged_array(job, loaded, alike.get(name, name), entry)

    return export(job, out, read=read, force=force, progress=progress)


def _equal_parameters(job: Job, loaded: Loaded) -> dict[str, str]:
    """Parameters that are equal to an earlier one, with the adapter too: {later: first}.

    Raises BU171 if the adapter does not change both alike: one tensor cannot have two values.
    """
    same = job.plan.aliases()
    for name, first in same.items():
        if _factors_of(loaded.lora, name) != _factors_of(loaded.lora, first):
            raise fail(
                "BU171",
                f"`{first}` and `{name}` are one tensor in this checkpoint, and the adapter does not change both alike",
                help="apply the adapter without merging it, or untie the two in the base's checkpoint first",
                parameter=first,
            )
    return same


def _factors_of(lora: Lora, name: str) -> set[tuple[float, frozenset[str]]]:
    """The scales and the tensors of a parameter's factors."""
    entries = lora.plan.entries
    return {
        (factor.scale, frozenset(info.name for each in (factor.a, factor.b) for info in entries[each].tensors))
        for factor in lora.sites.get(name, ())
    }
