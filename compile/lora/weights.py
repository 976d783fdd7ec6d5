"""A job's parameters with a merged LoRA: W + ΔW, with the magnitudes of DoRA, and with tensors that were trained."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, cast

from bringup.adapters.apply.materialise import fill, materialise
from bringup.adapters.checkpoints.arrays import numpy_dtype
from bringup.adapters.lora.load import Loaded
from bringup.adapters.lora.merge import delta, scale_rows
from bringup.adapters.lora.trained import Trained
from bringup.adapters.planning.plan import Entry
from bringup.compile.job import Job
from bringup.compile.lora.values import refuse_wrong_values
from bringup.diagnostics import fail
from bringup.spec import FLOATS, TensorInfo

if TYPE_CHECKING:
    import numpy as np


def merged(job: Job, loaded: Loaded, only: Iterable[str] | None = None) -> dict[str, np.ndarray]:
    """Every parameter, or those in `only`, as W + ΔW: added in float32, in the parameter's dtype.

    Raises as `refuse_wrong_values` does, BU174 for a sum out of the range of the parameter's dtype, and BU207.
    """
    refuse_wrong_values(job, loaded)
    names = list(job.plan.entries if only is None else only)
    own = trained_tensors(job, loaded)
    arrays = {name: merged_array(job, loaded, own, name, job.plan.entries[name]) for name in names}
    job.checkpoint.refuse_changed()
    return arrays


def trained_tensors(job: Job, loaded: Loaded) -> dict[str, Trained]:
    """The values that replace tensors of the job's checkpoint, by their names there.

    A head that is tied to the embedding has no tensor. Raises BU161 for another one that the checkpoint does not have.
    """
    names = job.adapter.names(job.checkpoint.headers)
    found: dict[str, Trained] = {}
    for target, own in loaded.trained.items():
        info = names.get(names.bare(target))
        if info is not None and info.dtype in FLOATS:
            found[info.name] = own
        elif target not in loaded.heads:
            message = f"`{own.info.name}` replaces `{target}`, which this checkpoint does not have as floats"
            help = "merge it into the checkpoint that it was trained on"
            raise fail("BU161", message, help=help, sources=(own.info.name,))
    return found


def merged_array(job: Job, loaded: Loaded, own: Mapping[str, Trained], name: str, entry: Entry) -> np.ndarray:
    """One parameter plus its ΔW, rounded once; `own` are `trained_tensors`.

    Raises BU174 for a value out of the range of its dtype, or of that of a tensor that it is stored in.
    """
    import numpy as np

    def read(info: TensorInfo) -> np.ndarray:
        base, found = job.checkpoint.loaded(info), own.get(info.name)
        if found is None:
            return base
        values = loaded.files.checkpoint.read(found.info)
        _refuse_overflow(entry, values, np.isfinite(values), base.dtype)
        return found.over(base, values)

    array = fill(entry, read)
    factors = loaded.lora.sites.get(name)
    if factors is None:
        return array
    wanted = [each for factor in factors for each in (factor.a, factor.b, factor.magnitude) if each]
    arrays = materialise(loaded.lora.plan, loaded.files.checkpoint, only=wanted)
    total = array.astype(np.float32) + delta(factors, arrays)
    for factor in factors:
        if factor.magnitude:
            has_one = fill(loaded.lora.plan.entries[factor.magnitude], lambda info: np.ones(info.shape, np.float32))
            scale_rows(total, factor, arrays[factor.magnitude], has_one.astype(bool))
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
