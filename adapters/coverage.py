"""How much of each checkpoint tensor a plan reads, counted in bits, each bit once."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations

from bringup.adapters.computed import Computed
from bringup.adapters.nest import Nest, boxes
from bringup.adapters.plan import Entry, Plan
from bringup.spec import DTYPES, TensorInfo


def read_bits(plan: Plan) -> dict[str, int]:
    """For every tensor that the plan reads, how many of its bits, whatever the number of readers."""
    readers: dict[str, list[Nest]] = {}
    infos: dict[str, TensorInfo] = {}
    for entry in plan.entries.values():
        for nest in _read(entry.region.nests, entry.sources):
            source = entry.sources[nest.source]
            assert isinstance(source, TensorInfo)
            infos[source.name] = source
            readers.setdefault(source.name, []).append(nest)
    counted: dict[tuple[object, ...], int] = {}
    result: dict[str, int] = {}
    for name, nests in readers.items():
        total = total_bits(infos[name])
        shape = (total, *((nest.view, nest.src, nest.loops) for nest in nests))
        if shape not in counted:
            counted[shape] = _distinct(nests, total)
        result[name] = counted[shape]
    return result


def _read(nests: Iterable[Nest], sources: Sequence[TensorInfo | Computed]) -> Iterator[Nest]:
    """Nests over tensors: of a value, those of its inputs."""
    for nest in nests:
        source = sources[nest.source]
        if isinstance(source, Computed):
            for region in source.inputs:
                yield from _read(region.nests, sources)
        else:
            yield nest


def half_used(plan: Plan) -> Iterator[tuple[Entry, Computed, float]]:
    """Values of which some elements reach no parameter: the first entry that uses one, and the share that is used."""
    users: dict[tuple[object, ...], list[tuple[Entry, int]]] = {}
    for entry in plan.entries.values():
        for index, source in enumerate(entry.sources):
            if isinstance(source, Computed):
                tensors = tuple(entry.sources[n.source] for r in source.inputs for n in r.nests)
                users.setdefault((source, tensors), []).append((entry, index))
    for entries in users.values():
        first, at = entries[0]
        value = first.sources[at]
        assert isinstance(value, Computed)
        nests = [n for entry, index in entries for n in entry.region.nests if n.source == index]
        inner = any(n.source == at for s in first.sources if isinstance(s, Computed) for r in s.inputs for n in r.nests)
        total = math.prod(value.shape) * DTYPES[value.dtype].bits
        used = total if inner or not nests else _distinct(nests, total)
        if used < total:
            yield first, value, used / total


def total_bits(info: TensorInfo) -> int:
    return 8 * DTYPES[info.dtype].nbytes(info.shape)


def _distinct(nests: Sequence[Nest], total: int) -> int:
    bits = min(DTYPES[nest.view].bits for nest in nests)
    alike = {(nest.view, nest.src, nest.loops): nest for nest in nests}.values()
    largest = max(nest.count * DTYPES[nest.view].bits for nest in alike)
    if largest == total or len(alike) == 1:  # a movement reads each element of its source at most once
        return largest
    found = boxes([_in_units(nest, bits) for nest in alike], total // bits)
    if found is not None and not any(_meet(a, b) for a, b in combinations(found, 2)):
        return sum(nest.count * DTYPES[nest.view].bits for nest in alike)
    import numpy as np  # readers overlap: mark every unit

    seen = np.zeros(total // bits, bool)
    for nest in (_in_units(nest, bits) for nest in alike):
        shape = [extent for extent, _, _ in nest.loops]
        np.lib.stride_tricks.as_strided(seen[nest.src :], shape, [src for _, src, _ in nest.loops])[...] = True
    return int(seen.sum()) * bits


def _in_units(nest: Nest, bits: int) -> Nest:
    ratio = DTYPES[nest.view].bits // bits
    loops = (*((extent, src * ratio, dst * ratio) for extent, src, dst in nest.loops), (ratio, 1, 1))
    return Nest(nest.source, nest.view, nest.src * ratio, tuple(loop for loop in loops if loop[0] > 1), 0)


def _meet(a: Sequence[tuple[int, int]], b: Sequence[tuple[int, int]]) -> bool:
    return all(lo < other_hi and other_lo < hi for (lo, hi), (other_lo, other_hi) in zip(a, b, strict=True))
