"""How much of each checkpoint tensor a plan reads, counted in bits, each bit once."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from bringup.adapters.nest import Nest, boxes
from bringup.adapters.plan import Plan
from bringup.spec import DTYPES, TensorInfo


def read_bits(plan: Plan) -> dict[str, int]:
    """For every tensor that the plan reads, how many of its bits, whatever the number of readers."""
    readers: dict[str, list[Nest]] = {}
    infos: dict[str, TensorInfo] = {}
    for entry in plan.entries.values():
        inner = [region.nests for source in entry.sources for region in getattr(source, "inputs", ())]
        for nest in (*entry.region.nests, *(nest for nests in inner for nest in nests)):
            source = entry.sources[nest.source]
            if isinstance(source, TensorInfo):
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
