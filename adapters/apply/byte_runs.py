"""The bytes of a file that a parameter needs: the runs of its copy nests, and how they are read.

A run is read on its own if it is long enough to be worth a separate read. A tensor of which a parameter needs many
short runs (a row-parallel slice, a transposed matrix) is read once, in file order, from the first to the last byte
needed, and clipped in memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from bringup.adapters.algebra.computed import Box, Computed
from bringup.adapters.algebra.copy_nest import Nest
from bringup.adapters.algebra.region import Region
from bringup.adapters.apply.materialise import reads
from bringup.adapters.planning.plan import Entry, Plan
from bringup.spec import DTYPES, TensorInfo

Span = tuple[int, int]  # first byte and end, within a tensor

SHORT = 64 << 10  # bytes; a disk reads about this much in the time of one request
MOST = 1 << 12  # runs of a tensor that are listed; more are read as one range


def needed(entry: Entry) -> dict[str, list[Span]]:
    """The byte ranges that are read for a parameter, by tensor."""
    found: dict[str, list[Span]] = {}
    for nest in _nests(entry.stored(), entry.sources):
        info = entry.sources[nest.source]
        assert isinstance(info, TensorInfo)
        found.setdefault(info.name, []).extend(_runs(nest))
    return {name: _read_as(spans) for name, spans in found.items()}


Group = list[tuple[int, str]]  # parameters, each with the index of its plan


def groups(plans: Sequence[Plan]) -> list[Group]:
    """The parameters of several ranks' plans that need the same tensors, which are then read once, in file order."""
    found: dict[tuple[TensorInfo, ...], Group] = {}
    for index, plan in enumerate(plans):
        for name, entry in plan.entries.items():
            found.setdefault(tuple(entry.tensors), []).append((index, name))
    return [found[tensors] for tensors in sorted(found, key=_place)]


def _place(tensors: tuple[TensorInfo, ...]) -> tuple[str, int]:
    return (str(tensors[0].file), tensors[0].offset) if tensors else ("", 0)


def read_nbytes(plans: Sequence[Plan]) -> int:
    """The number of bytes that a conversion of these plans reads, for one rank or all ranks together."""
    known: dict[tuple[int, ...], int] = {}
    total = 0
    for group in groups(plans):
        entries = [plans[index].entries[name] for index, name in group]
        key = tuple(id(entry.region) for entry in entries)  # identical layers share it
        if key not in known:
            known[key] = sum(stop - start for spans in union(entries).values() for start, stop in spans)
        total += known[key]
    return total


def union(entries: Sequence[Entry]) -> dict[str, list[Span]]:
    """The byte ranges that any of these entries needs, by tensor, each byte once."""
    found: dict[str, list[Span]] = {}
    for entry in entries:
        for name, spans in needed(entry).items():
            found.setdefault(name, []).extend(spans)
    return {name: merged(spans) for name, spans in found.items()}


def _nests(region: Region, sources: Sequence[TensorInfo | Computed]) -> Iterator[Nest]:
    """Nests over tensors: for a computed value those of its inputs, of the part that is computed."""
    seen = set[tuple[int, Box]]()
    for nest, box, source in reads(region, sources):
        if isinstance(source, TensorInfo):
            yield nest
        elif (nest.source, box) not in seen:
            seen.add((nest.source, box))
            for part in source.inputs:
                yield from _nests(part, sources)


def _runs(nest: Nest) -> list[Span]:
    """The byte ranges that a nest reads, in file order; a single one if they are many or short."""
    bits = DTYPES[nest.view].bits
    loops = sorted((src, extent) for extent, src, _ in nest.loops if extent > 1)
    length = 1
    while loops and loops[0][0] <= length:  # contiguous with the previous run
        stride, extent = loops.pop(0)
        length = max(length, stride * (extent - 1) + length)
    last = nest.src + length + sum(stride * (extent - 1) for stride, extent in loops)
    count = 1
    for _, extent in loops:
        count *= extent
    if count > MOST or (count > 1 and length * bits < SHORT * 8):
        return [_bytes(nest.src, last, bits)]
    starts = [nest.src]
    for stride, extent in reversed(loops):
        starts = [start + index * stride for start in starts for index in range(extent)]
    return [_bytes(start, start + length, bits) for start in starts]


def _bytes(start: int, stop: int, bits: int) -> Span:
    return start * bits // 8, -(-stop * bits // 8)


def _read_as(spans: list[Span]) -> list[Span]:
    """Merged ranges; if one of several is short, a single range from the first byte to the last."""
    found = merged(spans)
    if len(found) > 1 and min(stop - start for start, stop in found) < SHORT:
        return [(found[0][0], found[-1][1])]
    return found


def merged(spans: Iterable[Span]) -> list[Span]:
    """Ranges in order; those that touch or overlap are merged."""
    found: list[Span] = []
    for start, stop in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], stop)
        else:
            found.append((start, stop))
    return found
