"""A model with a merged LoRA, in the published layout."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from bringup.adapters.lora.factors import Lora, LowRank
from bringup.adapters.lora.load import Loaded
from bringup.adapters.planning.plan import Entry
from bringup.compile.convert.export import export
from bringup.compile.convert.published_files import Exported
from bringup.compile.job import Job
from bringup.compile.lora.values import refuse_wrong_values
from bringup.compile.lora.weights import merged_array, trained_values
from bringup.diagnostics import fail
from bringup.progress import Progress

if TYPE_CHECKING:
    import numpy as np


def merge_lora(
    job: Job, loaded: Loaded, out: str | Path, *, force: bool = False, progress: Progress | None = None
) -> Exported:
    """Writes the checkpoint of `job` with W + ΔW in place of W, with its own names, files and dtypes.

    With DoRA, rows of the sum are scaled to their magnitudes. Tensors that the adapter has trained replace the base's.

    Sums are computed in float32 and rounded once. Raises the errors of the adapter, BU169 for one without effect, BU171
    for one that changes one of two parameters that are read from one tensor, BU174 for a sum out of the range of its
    tensor's dtype, and the errors of `export`.
    """
    loaded.raise_if_errors()
    alike = _equal_parameters(job, loaded)
    refuse_wrong_values(job, loaded)
    own = trained_values(job, loaded)

    def read(name: str, entry: Entry) -> np.ndarray:
        return merged_array(job, loaded, own, alike.get(name, name), entry)

    return export(job, out, read=read, inputs=loaded.files.checkpoint.files, force=force, progress=progress)


def _equal_parameters(job: Job, loaded: Loaded) -> dict[str, str]:
    """Parameters that are equal to an earlier one, with the adapter too: {later: first}.

    Raises BU171 if the adapter does not change both alike: one tensor cannot have two values.
    """
    same = job.plan.aliases()
    for name, first in same.items():
        if _factors_of(loaded.lora, name) != _factors_of(loaded.lora, first) or not _trained_alike(loaded, name, first):
            raise fail(
                "BU171",
                f"`{first}` and `{name}` are one tensor in this checkpoint, and the adapter does not change both alike",
                help="untie the two in the base's checkpoint first"
                + ("" if loaded.merged_only() else ", or apply the adapter without merging it"),
                parameter=first,
            )
    return same


def _factors_of(lora: Lora, name: str) -> set[tuple[float, frozenset[str]]]:
    """The scales and the tensors of a parameter's factors."""
    entries = lora.plan.entries
    return {
        (factor.scale, frozenset(info.name for each in _arrays(factor) for info in entries[each].tensors))
        for factor in lora.sites.get(name, ())
    }


def _arrays(factor: LowRank) -> tuple[str, ...]:
    return (factor.a, factor.b, factor.magnitude) if factor.magnitude else (factor.a, factor.b)


def _trained_alike(loaded: Loaded, name: str, first: str) -> bool:
    """Whether the values that replace those of two parameters are equal."""
    import numpy as np

    read = loaded.files.checkpoint.read
    of_name, of_first = (
        [own for target, own in loaded.trained.items() if parameter in loaded.base.parameters_of(target)]
        for parameter in (name, first)
    )
    return len(of_name) == len(of_first) and all(
        own == other or (own.rows == other.rows and np.array_equal(read(own.info), read(other.info)))
        for own, other in zip(of_name, of_first, strict=True)
    )
