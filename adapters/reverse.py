"""Back to the published layout: the same copy nests with their two sides exchanged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from bringup.adapters.computed import Computed
from bringup.adapters.materialise import copy_nest, units
from bringup.adapters.plan import Entry, Plan
from bringup.adapters.problems import FLOATS
from bringup.diagnostics import fail
from bringup.spec import DTYPES, TensorInfo

if TYPE_CHECKING:
    import numpy as np


def reverse(plan: Plan, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The checkpoint's tensors, made from the parameters' arrays. Inverse of `materialise`, bit for bit.

    Raises BU117 where a rule computes values and has no inverse, or where the parameter's dtype is narrower than
    the tensor's.
    """
    import numpy as np

    from bringup.adapters.arrays import numpy_dtype

    made: dict[str, np.ndarray] = {}
    for name, entry in plan.entries.items():
        _refuse_inexact(entry)
        region = entry.stored()
        flat = units(arrays[name], _unit(entry, region.word))
        computed: dict[int, np.ndarray] = {}
        for nest in region.nests:
            source = entry.sources[nest.source]
            if isinstance(source, TensorInfo):
                target = _unpacked(made, source, nest.view)
            else:
                target = computed.setdefault(
                    nest.source, np.zeros(int(np.prod(source.shape)), numpy_dtype(source.dtype))
                )
            copy_nest(nest.swapped(), flat, target)
        for index, values in computed.items():
            _invert(entry, index, values, made)
    return {info.name: _packed(made[info.name], info) for info in plan.headers.values() if info.name in made}


def _unit(entry: Entry, word: int) -> str:
    """The dtype of one unit of the stored array."""
    return entry.declared.dtype if entry.declared.pack or word == 1 else entry.region.nests[0].view


def _refuse_inexact(entry: Entry) -> None:
    for nest in entry.region.nests:
        source = entry.sources[nest.source]
        lossy = isinstance(source, Computed) and source.inverse is None
        narrower = {nest.view, entry.declared.dtype} <= FLOATS and (
            DTYPES[nest.view].bits > DTYPES[entry.declared.dtype].bits
        )
        if lossy or narrower:
            how = source.name if lossy else f"{nest.view} became {entry.declared.dtype}"
            raise fail(
                "BU117",
                f"`{entry.declared.name}` cannot be taken back to the checkpoint: {how}",
                help="export from a bundle compiled in the checkpoint's dtype",
                where=entry.rule.site,
            )


def _unpacked(made: dict[str, np.ndarray], info: TensorInfo, view: str) -> np.ndarray:
    """The tensor under construction, flat, one array element a unit."""
    import numpy as np

    from bringup.adapters.arrays import numpy_dtype

    if info.name not in made:
        count = DTYPES[info.dtype].nbytes(info.shape) * 8 // DTYPES[view].bits
        made[info.name] = np.zeros(count, np.uint8 if DTYPES[view].bits < 8 else numpy_dtype(view))
    return made[info.name]


def _packed(flat: np.ndarray, info: TensorInfo) -> np.ndarray:
    import numpy as np

    from bringup.adapters.arrays import numpy_dtype

    if flat.nbytes == 2 * DTYPES[info.dtype].nbytes(info.shape):
        flat = np.ascontiguousarray(flat[0::2] | flat[1::2] << 4)
    return flat.view(numpy_dtype(info.dtype)).reshape(info.shape)


def _invert(entry: Entry, index: int, values: np.ndarray, made: dict[str, np.ndarray]) -> None:
    source = entry.sources[index]
    assert isinstance(source, Computed)
    assert source.inverse is not None
    for region, array in zip(source.inputs, source.inverse(values.reshape(source.shape)), strict=True):
        for nest in region.nests:
            info = entry.sources[nest.source]
            if not isinstance(info, TensorInfo):
                raise fail("BU117", f"`{entry.declared.name}` is computed from computed values; that has no inverse")
            copy_nest(nest.swapped(), units(array, nest.view), _unpacked(made, info, nest.view))
