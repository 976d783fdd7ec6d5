"""A job's parameters with a merged LoRA: W + ΔW, with the magnitudes of DoRA, and with tensors that were trained."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
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
    own = trained_values(job, loaded)
    arrays = {name: merged_array(job, loaded, own, name, job.plan.entries[name]) for name in names}
    job.checkpoint.refuse_changed()
    return arrays


@dataclass(frozen=True, slots=True)
class TrainedValues:
    """The values of an adapter in place of the base's: of tensors by the names of the job's checkpoint, and, if the
    checkpoint has others, of parameters, with their entries."""

    tensors: Mapping[str, Trained]
    parameters: Mapping[str, tuple[Entry, Trained]]


def trained_values(job: Job, loaded: Loaded) -> TrainedValues:
    """The values that replace those of the job's checkpoint.

    A head that is tied to the embedding has no tensor. A tensor under a name of another program, such as that of all
    experts in one, replaces the parameters that are read from it alone. Raises BU161 for another one that the
    checkpoint does not have in floats.
    """
    names = job.adapter.names(job.checkpoint.headers)
    tensors: dict[str, Trained] = {}
    parameters: dict[str, tuple[Entry, Trained]] = {}
    for target, own in loaded.trained.items():
        info = names.get(names.bare(target))
        if info is not None and info.dtype in FLOATS:
            tensors[info.name] = own
        elif target in loaded.heads:
            continue
        elif info is None and (entries := _read_alone(job, loaded, target)) and not own.rows:
            parameters |= {entry.declared.name: (entry, own) for entry in entries}
        else:
            message = f"`{own.info.name}` replaces `{target}`, which this checkpoint does not have as floats"
            help = "merge it into the checkpoint that it was trained on"
            raise fail("BU161", message, help=help, sources=(own.info.name,))
    return TrainedValues(tensors, parameters)


def merged_array(job: Job, loaded: Loaded, own: TrainedValues, name: str, entry: Entry) -> np.ndarray:
    """One parameter plus its ΔW, rounded once; `own` are `trained_values`.

    Raises BU174 for a value out of the range of its dtype, or of that of a tensor that it is stored in.
    """
    import numpy as np

    def read(info: TensorInfo) -> np.ndarray:
        base, found = job.checkpoint.loaded(info), own.tensors.get(info.name)
        if found is None:
            return base
        values = loaded.files.checkpoint.read(found.info)
        _refuse_overflow(loaded, entry, values, np.isfinite(values), base.dtype)
        return found.over(base, values)

    array = fill(entry, read)
    if name in own.parameters:
        array = _replaced(loaded, array, entry, *own.parameters[name])
    factors = loaded.lora.sites.get(name)
    if factors is None:
        return array
    wanted = [each for factor in factors for each in (factor.a, factor.b, factor.magnitude) if each]
    arrays = materialise(loaded.lora.plan, loaded.files.checkpoint, only=wanted)
    total = array.astype(np.float32) + delta(factors, arrays)
    for factor in factors:
        if factor.magnitude:
            has_one = fill(loaded.lora.plan.entries[factor.magnitude], _ones)
            scale_rows(total, factor, arrays[factor.magnitude], has_one.astype(bool))
    for dtype in {array.dtype, *(numpy_dtype(info.dtype) for info in entry.tensors)}:
        _refuse_overflow(loaded, entry, total, np.isfinite(array), dtype)
    return total.astype(array.dtype)


def _read_alone(job: Job, loaded: Loaded, target: str) -> list[Entry]:
    """The parameters that are read from a tensor of the base and from no other; [] if one of them is not, or if the
    job's checkpoint does not have one in floats."""
    entries = [use.entry for use in loaded.base.uses.get(target, ())]
    stored = [info for entry in entries for info in job.plan.entries[entry.declared.name].tensors]
    alone = all(len(entry.sources) == 1 for entry in entries) and all(info.dtype in FLOATS for info in stored)
    return entries if alone else []


def _replaced(loaded: Loaded, base: np.ndarray, entry: Entry, source: Entry, own: Trained) -> np.ndarray:
    """A parameter with the values of an adapter's tensor, by the entry `source`, in the dtype of `base`."""
    import numpy as np

    values = loaded.files.checkpoint.read(own.info)
    for dtype in {base.dtype, *(numpy_dtype(info.dtype) for info in entry.tensors)}:
        _refuse_overflow(loaded, entry, values, np.isfinite(values), dtype)
    return fill(source, lambda info: values.astype(numpy_dtype(info.dtype))).astype(base.dtype)


def _ones(info: TensorInfo) -> np.ndarray:
    """An array of a tensor's shape and dtype."""
    import numpy as np

    return np.ones(info.shape, numpy_dtype(info.dtype))


def _refuse_overflow(loaded: Loaded, entry: Entry, total: np.ndarray, was_finite: np.ndarray, dtype: np.dtype) -> None:
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
        help = "merge into a copy of the base in bfloat16 or float32"
        help += "" if loaded.merged_only() else ", or apply the adapter unmerged (`--lora`)"
        raise fail("BU174", message, help=help, parameter=name, sources=tuple(info.name for info in entry.tensors))
