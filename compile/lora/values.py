"""Errors that only the values of an adapter show."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from bringup.adapters.apply.materialise import fill
from bringup.adapters.lora.load import Loaded
from bringup.adapters.lora.pairing_findings import not_transposed
from bringup.compile.job import Job
from bringup.diagnostics import BringupError, fail
from bringup.grouping import listed
from bringup.spec import TensorInfo

if TYPE_CHECKING:
    import numpy as np


def refuse_wrong_values(job: Job, loaded: Loaded) -> None:
    """Raises the errors of an adapter before it is applied, BU168, BU169 and BU172. Reads all its factors."""
    loaded.raise_if_errors()
    _refuse_copies(job, loaded)
    refuse_wrong_factors(loaded)


def refuse_wrong_factors(loaded: Loaded) -> None:
    """Raises BU169 if B · A of every module is zero, as before training, BU172 for values that are not finite.

    BU168 if a tensor differs from another one that it should be equal to.
    """
    import numpy as np

    read = loaded.files.checkpoint.loaded
    changes = bool(loaded.trained)
    endless: list[str] = []
    for pair in loaded.pairs:
        peaks = [np.abs(read(info).astype(np.float32)).max(initial=0.0) for info in pair.tensors]
        endless += [info.name for info, peak in zip(pair.tensors, peaks, strict=True) if not np.isfinite(peak)]
        changes = changes or all(peaks)
    endless += [own.info.name for own in loaded.trained.values() if not np.isfinite(read(own.info)).all()]
    if endless:
        help = "download the file again; an adapter of float16 may have overflowed in training"
        raise fail("BU172", f"{listed(endless)} holds NaN or infinity", help=help, sources=tuple(endless))
    if wrong := [pair for pair in loaded.transposed if not np.array_equal(read(pair[0]), read(pair[1]).T)]:
        raise BringupError(not_transposed(*wrong[0]))
    if not changes:
        help = "an adapter is saved so before its first training step: use a later one"
        raise fail("BU169", "the adapter changes nothing: of each pair one factor is zero", help=help)


def _refuse_copies(job: Job, loaded: Loaded) -> None:
    """Raises BU168 if the adapter's file has other values for a tensor of the base than the base itself."""
    import numpy as np

    read = loaded.files.checkpoint.loaded
    names = job.adapter.names(job.checkpoint.headers)
    for target, info in loaded.copies.items():
        base = names.get(names.bare(loaded.heads.get(target, target)))
        if base is None:
            continue
        own = job.checkpoint.read(base)
        theirs = read(info)
        if own.shape != theirs.shape or not np.array_equal(own.astype(np.float32), theirs.astype(np.float32)):
            raise _other_copy(info, target)


def refuse_copies_of_others(loaded: Loaded, weights: Mapping[str, np.ndarray]) -> None:
    """Raises BU168 if the adapter's file has other values for a parameter than a bundle, in the bundle's dtype.

    `weights` are the bundle's, by name. A parameter without an array of its own there, because it is packed or a part
    of a larger one, is not compared.
    """
    import numpy as np

    read = loaded.files.checkpoint.loaded
    for target, info in loaded.copies.items():
        for use in loaded.base.uses.get(target, ()):
            entry, own = use.entry, weights.get(use.entry.declared.name)
            if own is None or len(entry.sources) != 1 or own.shape != entry.region.shape:
                continue
            theirs = fill(entry, lambda _, info=info: read(info))
            if not np.array_equal(own.astype(np.float32), theirs.astype(own.dtype).astype(np.float32)):
                raise _other_copy(info, target)


def _other_copy(info: TensorInfo, target: str) -> BringupError:
    return fail(
        "BU168",
        f"`{info.name}` differs from `{target}` of the base, and cannot be applied",
        help="use the base that the adapter was trained on, with the vocabulary that it had then",
        sources=(info.name,),
        file=str(info.file or ""),
        tensor=info.name,
    )
