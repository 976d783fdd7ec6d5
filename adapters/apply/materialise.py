"""Reads the arrays of a plan: a dict of exact names and shapes, C-contiguous, writable, none sharing writes.

Tensors that no rule moves are mapped from the file, copy on write; others are copied to aligned memory of their own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from bringup.adapters.algebra.computed import Box, Computed
from bringup.adapters.algebra.copy_nest import Nest, of_part, ranges
from bringup.adapters.algebra.region import Region
from bringup.adapters.algebra.results import checked
from bringup.adapters.apply.left_out import refuse_wrongly_left_out
from bringup.adapters.apply.strided_copy import strided_copy
from bringup.adapters.checkpoints.checkpoint import Checkpoint
from bringup.adapters.planning.plan import Entry, Plan
from bringup.spec import DTYPES, TensorInfo

if TYPE_CHECKING:
    import numpy as np

Read = Callable[[TensorInfo], "np.ndarray"]
THREADS = 2  # copies are bound by memory bandwidth


def materialise(
    plan: Plan, checkpoint: Checkpoint, *, copy: bool = False, only: Iterable[str] | None = None
) -> dict[str, np.ndarray]:
    """Every parameter (or those in `only`) as an array of its stored shape and dtype.

    `copy` gives each its own memory, so that no array refers to the checkpoint's files. Raises BU115 if all parameters
    are requested and the values of a dropped tensor do not permit to drop it, BU207 if a file has changed since its
    header was read.
    """
    if only is None:
        refuse_wrongly_left_out(plan, checkpoint.read)
    names = list(plan.entries if only is None else only)

    def make(name: str) -> np.ndarray:
        return fill(plan.entries[name], checkpoint.read, copy=copy)

    moved = {name: None for name in names if copy or not untouched(plan.entries[name])}
    arrays = {name: make(name) for name in names if name not in moved}
    if moved:
        from concurrent.futures import ThreadPoolExecutor  # takes 15 ms, which a check should not pay

        with ThreadPoolExecutor(THREADS) as pool:
            arrays |= zip(moved, pool.map(make, moved), strict=True)
    checkpoint.refuse_changed()
    return {name: arrays[name] for name in names}


def untouched(entry: Entry) -> TensorInfo | None:
    """The tensor whose bytes in the file are those of the parameter, or None."""
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
    """A region's elements in `dtype`, as a new aligned array."""
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
        flat[...] = np.zeros((), numpy_dtype(dtype))  # elements that no nest fills are padding
    loaded: dict[tuple[int, Box], np.ndarray] = {}
    for nest, box, source in reads(region, sources):
        if (nest.source, box) not in loaded:
            loaded[nest.source, box] = source_array(source, sources, read)
        array = loaded[nest.source, box]
        if not (DTYPES[nest.view].bits < 8 and copy_packed(nest, array, flat)):
            copy_nest(nest, units(array, nest.view), flat)
    if narrow and DTYPES[dtype].bits < 8:  # numpy stores a 4-bit element in a byte
        out.reshape(-1).view(np.uint8)[...] = flat
    elif narrow:
        out.reshape(-1).view(np.uint8)[...] = flat[0::2] | flat[1::2] << 4
    return out


def reads(
    region: Region, sources: Sequence[TensorInfo | Computed]
) -> Iterator[tuple[Nest, Box, TensorInfo | Computed]]:
    """Each nest with its source; of a computed source only the part that is read, as a box."""
    of_each: dict[int, list[Nest]] = {}
    for nest in region.nests:
        of_each.setdefault(nest.source, []).append(nest)
    for index, nests in of_each.items():
        source = sources[index]
        for nest, box in _boxes(nests, source) if isinstance(source, Computed) else ((nest, ()) for nest in nests):
            part = source.part(box) if isinstance(source, Computed) and box else None
            if part is None:
                yield nest, (), source
            else:
                yield from ((moved, part[1], part[0]) for moved in of_part(nest, source.shape, part[1]))


def _boxes(nests: Sequence[Nest], source: Computed) -> Iterator[tuple[Nest, Box]]:
    """Each nest with the box that is computed for it; overlapping boxes are merged, and () is the complete source."""
    whole = math.prod(source.shape)
    if any(nest.view != source.dtype or nest.count == whole for nest in nests):
        yield from ((nest, ()) for nest in nests)
        return
    own = [_around(ranges(nest, source.shape)) for nest in nests]
    together = _around(own)
    apart = sum(_size(box) for box in set(own)) <= _size(together)
    yield from zip(nests, own if apart else [together] * len(own), strict=True)


def _around(found: Iterable[Box]) -> Box:
    """The smallest box that contains all boxes."""
    each = (tuple(zip(*spans, strict=True)) for spans in zip(*found, strict=True))
    return tuple((min(starts), max(stops)) for starts, stops in each)


def _size(box: Box) -> int:
    return math.prod(stop - start for start, stop in box)


def source_array(source: TensorInfo | Computed, sources: Sequence[TensorInfo | Computed], read: Read) -> np.ndarray:
    """The array of a source: read, or computed from its inputs. Raises BU116 if it is not as its rule declares."""
    if isinstance(source, TensorInfo):
        return read(source)
    computed: object = source.run(*(fill_region(region, sources, read, region.dtype) for region in source.inputs))
    return checked(source.name, computed, source.shape, source.dtype)


def units(array: np.ndarray, view: str) -> np.ndarray:
    """A flat view of an array's bits as elements of dtype `view`; 4-bit elements become bytes, low bits first."""
    import numpy as np

    from bringup.adapters.checkpoints.arrays import numpy_dtype

    flat = np.ascontiguousarray(array).reshape(-1)
    if DTYPES[view].bits >= 8:
        return flat if flat.dtype == numpy_dtype(view) else flat.view(numpy_dtype(view))
    packed = flat.view(np.uint8)
    if flat.dtype.name in DTYPES and DTYPES[flat.dtype.name].bits < 8:  # a byte for each element
        return packed & 15
    return np.stack((packed & 15, packed >> 4), axis=1).reshape(-1)


def check_inside(nest: Nest, sizes: tuple[int, int]) -> None:
    """Raises IndexError for a nest that exceeds its source or its target, whose sizes in units are `sizes`.

    numpy's `as_strided` would read and write the memory behind them.
    """
    for start, side, size in ((nest.src, 1, sizes[0]), (nest.dst, 2, sizes[1])):
        steps = [(loop[0] - 1) * loop[side] for loop in nest.loops]
        first, last = start + sum(min(step, 0) for step in steps), start + sum(max(step, 0) for step in steps)
        if nest.count and not 0 <= first <= last < size:
            raise IndexError(f"a copy reaches from {first} to {last}, outside of an array of {size} values")


def copy_packed(nest: Nest, source: np.ndarray, target: np.ndarray) -> bool:
    """Executes a nest of 4-bit elements on `source`, which has two in each byte, without unpacking it.

    `target` has a byte for each element. Returns False, with nothing done, if the nest does not consist of complete
    bytes.
    """
    import numpy as np

    *outer, inner = nest.loops or ((1, 1, 1),)
    even = [nest.src, inner[0], *(stride for _, stride, _ in outer)]
    in_words = source.dtype.name in DTYPES and DTYPES[source.dtype.name].bits < 8
    if in_words or inner[1:] != (1, 1) or any(number % 2 for number in even):
        return False
    extents = [extent for extent, _, _ in outer]
    check_inside(nest, (source.nbytes * 2, target.size))
    packed = np.empty((*extents, inner[0] // 2), np.uint8)
    flat = np.ascontiguousarray(source).reshape(-1).view(np.uint8)
    steps = [*(stride // 2 for _, stride, _ in outer), 1]
    packed[...] = np.lib.stride_tricks.as_strided(flat[nest.src // 2 :], packed.shape, steps)
    steps = [*(stride for _, _, stride in outer), 2]
    for half, values in enumerate((packed & 15, packed >> 4)):
        np.lib.stride_tricks.as_strided(target[nest.dst + half :], packed.shape, steps)[...] = values
    return True


def copy_nest(nest: Nest, source: np.ndarray, target: np.ndarray) -> None:
    """Executes one nest; float dtypes are rounded to nearest even."""
    import numpy as np

    check_inside(nest, (source.size, target.size))
    shape = [extent for extent, _, _ in nest.loops]

    def strided(array: np.ndarray, offset: int, strides: Iterable[int]) -> np.ndarray:
        steps = [stride * array.itemsize for stride in strides]
        bits = array.view(f"u{array.itemsize}")[offset:]  # as_strided does not support ml_dtypes' float8_e5m2
        return np.lib.stride_tricks.as_strided(bits, shape, steps).view(array.dtype)

    if source.dtype == target.dtype:  # numpy copies integers faster than the dtypes of ml_dtypes
        source, target = source.view(f"u{source.itemsize}"), target.view(f"u{target.itemsize}")
    read = strided(source, nest.src, (src for _, src, _ in nest.loops))
    write = strided(target, nest.dst, (dst for _, _, dst in nest.loops))
    strided_copy(write, read, "unsafe" if source.dtype.kind != target.dtype.kind else "same_kind")


def check_ties(plan: Plan, checkpoint: Checkpoint) -> list[str]:
    """Parameters that the config ties and the checkpoint has separately, with different values."""

    def differs(own: Entry, theirs: Entry) -> bool:
        import numpy as np  # imported only if there is something to compare: an up-to-date compile reads no tensor

        return not np.array_equal(fill(own, checkpoint.read), fill(theirs, checkpoint.read))

    return [own.declared.name for own, theirs in plan.compare if differs(own, theirs)]
