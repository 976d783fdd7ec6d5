"""A job's parameters with a merged LoRA."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, cast

from bringup.adapters.apply.materialise import fill, materialise
from bringup.adapters.checkpoints.arrays import numpy_dtype
from bringup.adapters.lora.factors import Lora
from bringup.adapters.lora.load import Loaded
from bringup.adapters.lora.merge import delta
from bringup.adapters.planning.plan import Entry
from bringup.compile.job import Job
from bringup.compile.lora.values import refuse_wrong_values
from bringup.diagnostics import fail

if TYPE_CHECKING:
    import numpy as np


def merged(job: Job, loaded: Loaded, only: Iterable[str] | None = None) -> dict[str, np.ndarray]:
    """Every parameter, or those in `only`, as W + ΔW: added in float32, in the parameter's dtype.

    Raises as `refuse_wrong_values` does, BU174 for a sum out of the range of the parameter's dtype, and BU207.
    """
    refuse_wrong_values(job, loaded)
    names = list(job.plan.entries if only is None else only)
    arrays = {name: merged_array(job, loaded, name, job.plan.entries[name]) for name in names}
    job.checkpoint.refuse_changed()
    return arrays


def merged_array(job: Job, loaded: Loaded, name: str, entry: Entry) -> np.ndarray:
    """One parameter plus its ΔW, rounded once. Raises BU174 for a sum out of the range of its dtype, or of that of a
    tensor that it is stored in."""
    import numpy as np

    array = fill(entry, job.checkpoint.loaded)
    added = added_to(loaded.lora, name, loaded)
    if added is None:
        return array
    total = array.astype(np.float32) + added
    for dtype in {array.dtype, *(numpy_dtype(info.dtype) for info in entry.tensors)}:
        _refuse_overflow(entry, total, np.isfinite(array), dtype)
    return total.astype(array.dtype)


def _refuse_overflow(entry: Entry, total: np.ndarray, was_finite: np.ndarray, dtype: np.dtype) -> None:
    """Raises BU174 if the base's value is finite, and the sum as `dtype` is not."""
    import numpy as np
    from ml_dtypes import finfo

    with np.errstate(over="ignore"):
        lost = was_finite & ~np.isfinite(total.astype(dtype))
    if lost.any():
        at = [int(index) for index in np.argwhere(lost)[0]]
        name, number, largest = entry.declared.name, total[tuple(at)], float(cast(Any, finfo(dtype)).max)
        message = f"`{name}` would be {number:,.5g} at {at} with the adapter merged in"
        message += f", and {dtype} ends at {largest:,.5g}"
        help = "merge into a copy of the base in bfloat16 or float32, or apply the adapter unmerged (`--lora`)"
        raise fail("BU174", message, help=help, parameter=name, sources=tuple(info.name for info in entry.tensors))


def added_to(lora: Lora, name: str, loaded: Loaded) -> np.ndarray | None:
    """ΔW of a parameter, float32; None if the adapter does not change it."""
    factors = lora.sites.get(name)
    if factors is None:
        return None
    wanted = [each for factor in factors for each in (factor.a, factor.b)]
    return delta(factors, materialise(lora.plan, loaded.files.checkpoint, only=wanted))
