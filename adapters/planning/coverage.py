"""The bits of each checkpoint tensor that a plan reads, each bit once.

Layers of one proof share one region: the bits that it reads of each source are counted once for all of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations

from bringup.adapters.algebra.computed import Computed
from bringup.adapters.algebra.copy_nest import Nest, boxes
from bringup.adapters.planning.plan import Entry, Plan
from bringup.spec import DTYPES, TensorInfo

Nests = dict[int, list[Nest]]  # by the source that they read
Whole = list[tuple[list[Entry], dict[int, int]]]  # entries, and the bits of sources that each reads completely
Users = dict[tuple[object, ...], list[tuple[Entry, int, list[Nest]]]]  # of a value: entry, its index there, the nests


def read_bits(plan: Plan) -> dict[str, int]:
    """For every tensor that the plan reads, the number of bits read, whatever the number of readers."""
    whole, parts = _readings(plan)
    return {name: bits for name, (bits, _) in parts.items()} | dict(_bits(whole))


def partly_read(plan: Plan) -> dict[str, int]:
    """The number of bits that reach no parameter, for each tensor that has any."""
    whole, parts = _readings(plan)
    less = {name: bits for name, (bits, total) in parts.items() if bits < total}
    elsewhere = dict(_bits(whole)) if less else {}
    return {name: bits for name, bits in less.items() if name not in elsewhere}


def _readings(plan: Plan) -> tuple[Whole, dict[str, tuple[int, int]]]:
    """The sources that single entries read completely; and of partly read tensors the bits read and their total."""
    whole: Whole = []
    parts: dict[str, tuple[int, list[Nest]]] = {}
    for entries in _by_region(plan):
        reading = _by_source(_read(entries[0].region.nests, entries[0].sources))
        totals = {i: total_bits(info) for i, info in enumerate(entries[0].sources) if isinstance(info, TensorInfo)}
        full = {index: totals[index] for index in reading if _distinct(reading[index], totals[index]) == totals[index]}
        whole.append((entries, full))
        partly = reading.keys() - full.keys()
        for entry in entries if partly else ():
            for index in partly:
                parts.setdefault(entry.sources[index].name, (totals[index], []))[1].extend(reading[index])
    counted: dict[tuple[object, ...], int] = {}
    read: dict[str, tuple[int, int]] = {}
    for name, (total, nests) in parts.items():
        shape = (total, *((nest.view, nest.src, nest.loops) for nest in nests))
        if shape not in counted:
            counted[shape] = _distinct(nests, total)
        read[name] = counted[shape], total
    return whole, read


def _bits(whole: Whole) -> Iterator[tuple[str, int]]:
    return (
        (entry.sources[index].name, bits)
        for entries, full in whole
        for entry in entries
        for index, bits in full.items()
    )


def half_used(plan: Plan) -> Iterator[tuple[Entry, Computed, float]]:
    """Values with elements that reach no parameter: the first entry that uses one, and the fraction that is used."""
    users: Users = {}
    whole: list[tuple[list[Entry], dict[int, Computed]]] = []
    for entries in _by_region(plan):
        sources, reading = entries[0].sources, _by_source(entries[0].region.nests)
        values = {index: source for index, source in enumerate(sources) if isinstance(source, Computed)}
        inner = {nest.source for value in values.values() for region in value.inputs for nest in region.nests}
        half = {
            index: value
            for index, value in values.items()
            if index in reading.keys() - inner and _distinct(reading[index], _value_bits(value)) < _value_bits(value)
        }
        for entry in entries if half else ():
            for index, value in half.items():
                users.setdefault(_key(entry, value), []).append((entry, index, reading[index]))
        whole.append((entries, {index: value for index, value in values.items() if index not in half}))
    _remove_complete(users, whole)
    for found in users.values():
        entry, index, _ = found[0]
        value = entry.sources[index]
        assert isinstance(value, Computed)
        used = _distinct([nest for _, _, nests in found for nest in nests], _value_bits(value))
        if used < _value_bits(value):
            yield entry, value, used / _value_bits(value)


def _remove_complete(users: Users, whole: Sequence[tuple[list[Entry], dict[int, Computed]]]) -> None:
    """Removes the values that an entry uses completely."""
    used = {key[0] for key in users}
    for entries, values in whole if users else ():
        for value in values.values():
            for entry in entries if _unplaced(value) in used else ():
                users.pop(_key(entry, value), None)


def _key(entry: Entry, value: Computed) -> tuple[object, ...]:
    """What a value computes, from which sources. A rule that names a tensor twice has two sources for it."""
    sources = [entry.sources[nest.source] for region in value.inputs for nest in region.nests]
    return _unplaced(value), *(_key(entry, each) if isinstance(each, Computed) else each for each in sources)


def _unplaced(value: Computed) -> Computed:
    """The value without the indices of its sources."""
    inputs = (replace(region, nests=tuple(replace(nest, source=0) for nest in region.nests)) for region in value.inputs)
    return replace(value, inputs=tuple(inputs), arrays_of_form=())


def _by_region(plan: Plan) -> Iterable[list[Entry]]:
    """The entries by their region: those that share one have sources of the same shapes and dtypes."""
    found: dict[int, list[Entry]] = {}
    for entry in plan.entries.values():
        found.setdefault(id(entry.region), []).append(entry)
    return found.values()


def _by_source(nests: Iterable[Nest]) -> Nests:
    found: Nests = {}
    for nest in nests:
        found.setdefault(nest.source, []).append(nest)
    return found


def _read(nests: Iterable[Nest], sources: Sequence[TensorInfo | Computed]) -> Iterator[Nest]:
    """Nests over tensors: for a value those of its inputs."""
    for nest in nests:
        source = sources[nest.source]
        if isinstance(source, Computed):
            for region in source.inputs:
                yield from _read(region.nests, sources)
        else:
            yield nest


def total_bits(info: TensorInfo) -> int:
    return 8 * (info.nbytes or DTYPES[info.dtype].nbytes(info.shape))


def _value_bits(value: Computed) -> int:
    return math.prod(value.shape) * DTYPES[value.dtype].bits


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
