"""A job's parameters with a LoRA merged in."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from bringup.adapters.apply.materialise import fill, materialise
from bringup.adapters.lora.factors import Lora
from bringup.adapters.lora.load import Loaded
from bringup.adapters.lora.merge import delta
from bringup.adapters.planning.plan import Entry
from bringup.compile.job import Job
from bringup.compile.lora.values import refuse_wrong_values

if TYPE_CHECKING:
    import numpy as np


def merged(job: Job, loaded: Loaded, only: Iterable[str] | None = None) -> dict[str, np.ndarray]:
    """Every parameter, or those in `only`, as W + ΔW: added in float32, in the parameter's dtype.

    Raises as `refuse_wrong_values` does.
    """
    refuse_wrong_values(job, loaded)
    names = list(job.plan.entries if only is None else only)
    return {name: merged_array(job, loaded, name, job.plan.entries[name]) for name in names}


def merged_array(job: Job, loaded: Loaded, name: str, entry: Entry) -> np.ndarray:
    """One parameter with what the adapter adds to it."""
    import numpy as np

    array = fill(entry, job.checkpoint.load or job.checkpoint.read)
    added = added_to(loaded.lora, name, loaded)
    return array if added is None else (array.astype(np.float32) + added).astype(array.dtype)


def added_to(lora: Lora, name: str, loaded: Loaded) -> np.ndarray | None:
    """ΔW of a parameter, float32; None where the adapter adds nothing to it."""
    factors = lora.sites.get(name)
    if factors is None:
        return None
    wanted = [each for factor in factors for each in (factor.a, factor.b)]
    return delta(factors, materialise(lora.plan, loaded.files.checkpoint, only=wanted))
