"""A plan becomes arrays: dict of exact names and shapes, C-contiguous, writable, none visibly sharing memory.

Bytes that no rule moves stay in the file, mapped copy on write; bytes that move go into aligned memory of their own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from bringup.adapters.algebra.computed import Computed
from bringup.adapters.algebra.copy_nest import Nest
from bringup.adapters.algebra.region import Region
from bringup.adapters.checkpoints.checkpoint import Checkpoint
from bringup.adapters.planning.plan import Entry, Plan
from bringup.diagnostics import fail
from bringup.spec import DTYPES, TensorInfo

if TYPE_CHECKING:
    import numpy as np

Read = Callable[[TensorInfo], "np.ndarray"]
THREADS = 2  # copies are bound by memory, not by the processor


def materialise(
    plan: Plan, checkpoint: Checkpoint, *, copy: bool = False, only: Iterable[str] | None = None
) -> dict[str, np.ndarray]:
    """Every parameter (or those in `only`) as an array of its stored shape and dtype.

    `copy` gives each its own memory, so that nothing refers to the checkpoint's files.
    """
    names = list(plan.entries if only is None else only)

    def make(name: str) -> np.ndarray:
        return fill(plan.entries[name], checkpoint.read, copy=copy)

    from concurrent.futures import ThreadPoolExecutor  # 15 ms that a check need not pay

    with ThreadPoolExecutor(THREADS) as pool:
        return dict(zip(names, pool.map(make, names), strict=True))


def untouched(entry: Entry) -> TensorInfo | None:
    """The tensor whose bytes are the parameter's as they lie in the file, if there is one."""
    match entry.sources, entry.region.nests:
        case (TensorInfo() as info,), (Nest(src=0, dst=0, loops=loops) as nest,):
            in_place = nest.view == info.dtype and all(src == dst for _, src, dst in loops)
            whole = info.shape and nest.count == math.prod(info.shape) == entry.region.size
            return info if whole and in_place and info.dtype == entry.declared.storage[1] else None
        case _:
            return None


def fill(entry: Entry, read: Read, *, copy: bool = False) -> np.ndarray:
    """One parameter's array."""
    shape, dtype = entry.declared.storage
    source = untouched(entry)
    if source and not copy:
        array = read(source).reshape(shape)
        if array.flags.aligned and array.flags.c_contiguous and array.flags.writeable:
            return array
    return fill_region(entry.stored(), entry.sources, read, dtype).reshape(shape)


def fill_region(region: Region, sources: Sequence[TensorInfo | Computed], read: Read, dtype: str) -> np.ndarray:
    """A region's elements in `dtype`, as a fresh aligned array."""
    import numpy as np

    from bringup.adapters.checkpoints.arrays import aligned, numpy_dtype

    out = aligned(region.shape, dtype)
    unit = region.nests[0].view if region.word > 1 else dtype
    flat: np.ndarray = out.reshape(-1)
    narrow = DTYPES[unit].bits < 8
    if narrow:
        flat = np.zeros(region.size, np.uint8)
    elif region.word > 1:
        flat = flat.view(numpy_dtype(unit))
    elif sum(nest.count for nest in region.nests) < region.size:
        flat[...] = np.zeros((), numpy_dtype(dtype))  # what no nest fills is padding
    loaded: dict[int, np.ndarray] = {}
    for nest in region.nests:
        if nest.source not in loaded:
            loaded[nest.source] = source_array(sources, nest.source, read)
        copy_nest(nest, units(loaded[nest.source], nest.view), flat)
    if narrow and DTYPES[dtype].bits < 8:  # numpy keeps a 4-bit element in a byte of its own
        out.reshape(-1).view(np.uint8)[...] = flat
    elif narrow:
        out.reshape(-1).view(np.uint8)[...] = flat[0::2] | flat[1::2] << 4
    return out


def source_array(sources: Sequence[TensorInfo | Computed], index: int, read: Read) -> np.ndarray:
    """The array of a source: read, or computed from its inputs."""
    source = sources[index]
    if isinstance(source, TensorInfo):
        return read(source)
    computed = source.run(*(fill_region(region, sources, read, region.dtype) for region in source.inputs))
    from bringup.adapters.checkpoints.arrays import numpy_dtype

    if computed.shape != source.shape or computed.dtype != numpy_dtype(source.dtype):
        raise fail(
            "BU116",
            f"`{source.name}` gave {computed.dtype} {list(computed.shape)}; its rule declares "
            f"{source.dtype} {list(source.shape)}",
            help="correct the axes or dtype that the rule declares, or the function",
        )
    return computed


def units(array: np.ndarray, view: str) -> np.ndarray:
    """A flat view of an array's bits as elements of dtype `view`; 4-bit ones come as a byte each, low bits first."""
    import numpy as np

    from bringup.adapters.checkpoints.arrays import numpy_dtype

    flat = np.ascontiguousarray(array).reshape(-1)
    if DTYPES[view].bits >= 8:
        return flat if flat.dtype == numpy_dtype(view) else flat.view(numpy_dtype(view))
    packed = flat.view(np.uint8)
    if flat.dtype.name in DTYPES and DTYPES[flat.dtype.name].bits < 8:  # a byte an element
        return packed & 15
    return np.stack((packed & 15, packed >> 4), axis=1).reshape(-1)


def copy_nest(nest: Nest, source: np.ndarray, target: np.ndarray) -> None:
    """Carries out one nest; float dtypes round to nearest even."""
    import numpy as np

    shape = [extent for extent, _, _ in nest.loops]

    def strided(array: np.ndarray, offset: int, strides: Iterable[int]) -> np.ndarray:
        steps = [stride * array.itemsize for stride in strides]
        bits = array.view(f"u{array.itemsize}")[offset:]  # numpy cannot describe ml_dtypes' float8_e5m2 to as_strided
        return np.lib.stride_tricks.as_strided(bits, shape, steps).view(array.dtype)

    read = strided(source, nest.src, (src for _, src, _ in nest.loops))
    write = strided(target, nest.dst, (dst for _, _, dst in nest.loops))
    np.copyto(write, read, casting="unsafe" if source.dtype.kind != target.dtype.kind else "same_kind")


def check_ties(plan: Plan, checkpoint: Checkpoint) -> list[str]:
    """Parameters that the config ties and the checkpoint stores apart, with different values."""
    import numpy as np

    def differs(own: Entry, theirs: Entry) -> bool:
        return not np.array_equal(fill(own, checkpoint.read), fill(theirs, checkpoint.read))

    return [own.declared.name for own, theirs in plan.compare if differs(own, theirs)]
