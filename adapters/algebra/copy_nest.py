"""The normal form of every movement: strided copy nests.

A nest copies `prod(extents)` elements. Element (i0, i1, …) goes from `src + Σ i·src_stride` to `dst + Σ i·dst_stride`,
both counted in elements of the source and of the row-major result. In this form a slice is a clip, the inverse swaps
source and result, coverage is a count, and an explanation is a printout.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

Loop = tuple[int, int, int]  # extent, source stride, result stride


@dataclass(frozen=True, slots=True)
class Nest:
    """`source` indexes the sources of the region it belongs to; `view` is the dtype its elements are read as."""

    source: int
    view: str
    src: int
    loops: tuple[Loop, ...]
    dst: int

    @property
    def count(self) -> int:
        return math.prod(extent for extent, _, _ in self.loops)

    def swapped(self) -> Nest:
        """The inverse copy."""
        loops = tuple((extent, to, frm) for extent, frm, to in self.loops)
        return replace(self, src=self.dst, dst=self.src, loops=loops)


def row_major(sizes: Sequence[int]) -> tuple[int, ...]:
    """Strides, in elements, of a dense array."""
    strides: list[int] = []
    step = 1
    for size in reversed(sizes):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


def project(
    nests: Sequence[Nest],
    sizes: Sequence[int],
    strides: Sequence[int],
    *,
    base: int = 0,
    window: tuple[int, int, int] | None = None,
) -> tuple[Nest, ...]:
    """Moves nests from a dense result with axes of `sizes` to one in which axis k has stride `strides[k]`.

    `base` is added to every position. `window` (axis, start, stop) first selects that range of one axis; positions
    count from its start.
    """
    moved: list[Nest] = []
    for nest in nests:
        for src, loops, dst in _moved(nest.src, nest.loops, nest.dst, tuple(sizes), tuple(strides), window):
            moved.append(Nest(nest.source, nest.view, src, loops, base + dst))
    return tuple(moved)


@lru_cache(maxsize=4096)  # hundreds of experts differ only in their source tensor
def _moved(
    src: int,
    loops: tuple[Loop, ...],
    dst: int,
    sizes: tuple[int, ...],
    strides: tuple[int, ...],
    window: tuple[int, int, int] | None,
) -> tuple[tuple[int, tuple[Loop, ...], int], ...]:
    """The source start, loops and result start of each nest that `project` returns for a nest."""
    found: list[tuple[int, tuple[Loop, ...], int]] = []
    for grid in _grids(Nest(0, "", src, loops, dst), sizes):
        for clipped in _clip(grid, *window) if window else (grid,):
            start = sum(start * stride for start, stride in zip(clipped.starts, strides, strict=True))
            own = [(e, s, c * strides[k]) for e, s, k, c in clipped.loops]
            found.append((clipped.src, _canonical(own), start))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class _Grid:
    """A nest whose result side is split by axis: a start on each, and loops (extent, src stride, axis, step)."""

    src: int
    starts: tuple[int, ...]
    loops: tuple[tuple[int, int, int, int], ...]


def _grids(nest: Nest, sizes: Sequence[int]) -> Iterator[_Grid]:
    """Splits a nest so that no loop carries from one axis of `sizes` into the next."""
    strides = row_major(sizes)
    starts = tuple(nest.dst // stride % size for stride, size in zip(strides, sizes, strict=True))
    reach = list(starts)
    todo = sorted((loop for loop in nest.loops if loop[0] > 1), key=_outermost_first)
    done: list[tuple[int, int, int, int]] = []
    while todo:
        extent, src, dst = todo.pop()
        axis = next(k for k, stride in enumerate(strides) if stride <= dst and sizes[k] > 1)
        step, skew = divmod(dst, strides[axis])
        fits = 1 if skew else (sizes[axis] - 1 - reach[axis]) // step + 1
        wraps = not skew and fits > 1 and step * fits == sizes[axis]
        if extent <= fits:
            reach[axis] += step * (extent - 1)
            done.append((extent, src, axis, step))
        elif wraps and extent % fits == 0:  # the loop covers this axis and continues in the next: two loops
            todo += [(extent // fits, src * fits, dst * fits), (fits, src, dst)]
            todo.sort(key=_outermost_first)
        else:  # it crosses the axis at an uneven position: cut it there
            cut = extent // fits * fits if wraps else fits
            others = [*todo, *((e, s, c * strides[k]) for e, s, k, c in done)]
            head = (*others, (cut, src, dst))
            tail = (*others, (extent - cut, src, dst))
            yield from _grids(replace(nest, loops=head), sizes)
            yield from _grids(replace(nest, src=nest.src + cut * src, dst=nest.dst + cut * dst, loops=tail), sizes)
            return
    yield _Grid(nest.src, starts, tuple(done))


def _outermost_first(loop: Loop) -> int:
    return -loop[2]


def _clip(grid: _Grid, axis: int, start: int, stop: int) -> Iterator[_Grid]:
    """The part of a grid with start <= position < stop on one axis; positions then count from `start`."""
    own = sorted((loop for loop in grid.loops if loop[2] == axis), key=lambda loop: loop[3])
    at, span = grid.starts[axis], sum((extent - 1) * step for extent, _, _, step in own)
    if at >= stop or at + span < start:
        return
    if start <= at and at + span < stop:
        yield replace(grid, starts=(*grid.starts[:axis], at - start, *grid.starts[axis + 1 :]))
        return
    outer = own.pop()
    extent, src, _, step = outer
    rest = tuple(loop for loop in grid.loops if loop is not outer)
    span -= (extent - 1) * step
    first = max(0, -((at - start) // step))  # iterations first..last are completely inside
    last = min(extent, (stop - at - span - 1) // step + 1)
    whole = range(first, max(first, last))
    near = max(0, -((at + span - start) // step))  # earlier iterations end before the range
    beyond = min(extent, (stop - 1 - at) // step + 1)  # this and later iterations begin after the range
    for run in (range(near, first), whole, range(whole.stop, beyond)):
        pieces = [run] if run is whole else [range(i, i + 1) for i in run]
        for piece in pieces:
            if not len(piece):
                continue
            loops = rest if len(piece) == 1 else (*rest, (len(piece), src, axis, step))
            starts = (*grid.starts[:axis], at + piece.start * step, *grid.starts[axis + 1 :])
            yield from _clip(_Grid(grid.src + piece.start * src, starts, loops), axis, start, stop)


def _canonical(loops: Sequence[Loop]) -> tuple[Loop, ...]:
    """Loops by result stride, outermost first; loops of one iteration removed, contiguous loops merged."""
    merged: list[Loop] = []
    for extent, src, dst in sorted((loop for loop in loops if loop[0] > 1), key=_outermost_first):
        if merged and merged[-1][1] == src * extent and merged[-1][2] == dst * extent:
            extent *= merged.pop()[0]
        merged.append((extent, src, dst))
    return tuple(merged)


class Loop2(NamedTuple):
    """A loop along one axis of the source, by steps of `src`, and one axis of the result, by steps of `dst`."""

    extent: int
    source: int
    src: int
    result: int
    dst: int


class Grid2(NamedTuple):
    """A nest by the axes of both sides: its start on each, and its loops."""

    src: tuple[int, ...]
    dst: tuple[int, ...]
    loops: tuple[Loop2, ...]


def by_axes(nest: Nest, source: Sequence[int], result: Sequence[int]) -> Iterator[Grid2]:
    """Splits a nest so that no loop crosses from one axis of the source, or of the result, into the next."""
    strides = row_major(result)
    for outer in _grids(nest, result):
        dst = sum(start * stride for start, stride in zip(outer.starts, strides, strict=True))
        loops = tuple((extent, src, step * strides[axis]) for extent, src, axis, step in outer.loops)
        for grid in _grids(replace(nest, src=dst, dst=outer.src, loops=tuple((e, c, s) for e, s, c in loops)), source):
            found: list[Loop2] = []
            for extent, step, axis, src in grid.loops:
                k = next(k for k, stride in enumerate(strides) if stride <= step and result[k] > 1)
                found.append(Loop2(extent, axis, src, k, step // strides[k]))
            starts = tuple(grid.src // stride % size for stride, size in zip(strides, result, strict=True))
            yield Grid2(grid.starts, starts, tuple(found))


def ranges(nest: Nest, sizes: Sequence[int]) -> Iterator[tuple[tuple[int, int], ...]]:
    """The range that a nest reads of each axis of a source with axes of `sizes`: first position and end."""
    for grid in _grids(nest.swapped(), sizes):
        spans = [1] * len(sizes)
        for extent, _, axis, step in grid.loops:
            spans[axis] += (extent - 1) * step
        yield tuple((at, at + span) for at, span in zip(grid.starts, spans, strict=True))


def of_part(nest: Nest, sizes: Sequence[int], box: Sequence[tuple[int, int]]) -> tuple[Nest, ...]:
    """A nest over a dense source with axes of `sizes`, restricted to a box of it, as nests over the dense box alone."""
    strides = row_major([stop - start for start, stop in box])
    base = -sum(start * stride for (start, _), stride in zip(box, strides, strict=True))
    return tuple(moved.swapped() for moved in project((nest.swapped(),), sizes, strides, base=base))


def boxes(nests: Sequence[Nest], size: int) -> list[tuple[tuple[int, int], ...]] | None:
    """The source side of nests as boxes on one common grid of a source of `size` elements; None without such a grid."""
    strides = sorted({src for nest in nests for _, src, _ in nest.loops} | {1, size})
    if any(high % low for low, high in pairwise(strides)):
        return None
    sizes = [high // low for low, high in pairwise(strides)][::-1]
    found: list[tuple[tuple[int, int], ...]] = []
    for nest in nests:
        for grid in _grids(nest.swapped(), sizes):
            spans = dict.fromkeys(range(len(sizes)), 1)
            for extent, _, axis, step in grid.loops:
                if step != 1 or spans[axis] != 1:
                    return None
                spans[axis] = extent
            found.append(tuple((at, at + spans[k]) for k, at in enumerate(grid.starts)))
    return found
