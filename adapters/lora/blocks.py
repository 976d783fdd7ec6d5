"""The movement of a base rule, split into the movement of a tensor's rows and that of its columns.

A rule is copy nests (`algebra/copy_nest.py`). By the axes of both sides, a nest moves one axis of the tensor to some
axes of the parameter and the other axis to others. Movement that merges both into one axis, or moves the columns of
different rows differently, cannot be split.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from bringup.adapters.algebra.copy_nest import Grid2, by_axes
from bringup.adapters.planning.plan import Entry
from bringup.spec import Shape, TensorInfo

Steps = tuple[tuple[int, int, int, int], ...]  # loops: extent, step of the source, axis of the result, its step
Places = tuple[tuple[int, int], ...]  # axes of the result, and a position on each


class Mixed(ValueError):
    """Movement that cannot be split; the message describes it."""


@dataclass(frozen=True, slots=True)
class Line:
    """The movement of a nest along one axis of a source: its start there and in the result, and its loops."""

    src: int
    dst: Places
    loops: Steps


@dataclass(frozen=True, slots=True)
class Side:
    """One axis of a source, and the axes of the parameter that it is moved to."""

    size: int
    axes: tuple[int, ...]
    lines: tuple[Line, ...]


@dataclass(frozen=True, slots=True)
class Block:
    """The part of a parameter from one matrix of a source, at `place` on the axes that neither side has: an expert's.

    `summed` is the side that the parameter sums over. A source of three axes has `slabs` matrices; this is `slab`.
    """

    place: Places
    given: Side
    summed: Side
    slab: int = 0
    slabs: int = 1


def blocks(entry: Entry, source: int, *, first: bool) -> tuple[Block, ...]:
    """A source's part of a parameter; `first`: it sums over its first axis, as an embedding lookup does.

    Other parameters sum over the axis `in`, or else their last axis. Raises Mixed.
    """
    info, region = entry.sources[source], entry.region
    assert isinstance(info, TensorInfo)
    if len(info.shape) not in (2, 3):
        raise Mixed(f"the tensor has {len(info.shape)} axis, and a product of two factors has 2")
    if region.word != 1 or any(nest.view != info.dtype for nest in region.nests):
        raise Mixed("it reads bits as another type")
    nests = (nest for nest in region.nests if nest.source == source)
    grids = [grid for nest in nests for grid in by_axes(nest, info.shape, region.shape)]
    if not grids:
        raise Mixed("it computes values, and does not only move them")
    axes = entry.declared.axes
    names = [axis.name for axis in axes]
    over = names.index("in") if "in" in names else 0 if first else len(names) - 1
    lead = len(info.shape) - 2
    owners = _owners(grids, info.shape, region.shape)
    column = owners.get(over, lead if first else lead + 1)
    if column < lead:
        raise Mixed("it sums over the matrices of the tensor")
    row = 2 * lead + 1 - column
    columns = tuple(k for k in range(len(axes)) if owners.get(k, column if k == over else None) == column)
    rows = tuple(k for k in range(len(axes)) if owners.get(k) == row)
    if not rows:  # a single row
        rows = tuple(k for k, size in enumerate(region.shape) if size == 1 and k != over and k not in owners)[:1]
    return tuple(_blocks(grids, info.shape, region.shape, (row, rows), (column, columns)))


def _blocks(
    grids: Sequence[Grid2],
    shape: Shape,
    result: Shape,
    given: tuple[int, tuple[int, ...]],
    summed: tuple[int, tuple[int, ...]],
) -> Iterator[Block]:
    lead = len(shape) - 2
    placed = [k for k in range(len(result)) if k not in (*given[1], *summed[1])]
    found: dict[tuple[int, Places], list[tuple[Line, Line]]] = {}
    for grid in (one for whole in grids for one in _matrices(whole, lead)):
        key = grid.src[0] if lead else 0, tuple((k, grid.dst[k]) for k in placed)
        found.setdefault(key, []).append((_line(grid, *given), _line(grid, *summed)))
    for (slab, place), pairs in found.items():
        rows, columns = (tuple(dict.fromkeys(lines)) for lines in zip(*pairs, strict=True))
        if set(pairs) != set(product(rows, columns)):
            raise Mixed("it moves the columns of different rows differently")
        sides = Side(shape[given[0]], given[1], rows), Side(shape[summed[0]], summed[1], columns)
        yield Block(place, *sides, slab, shape[0] if lead else 1)


def _owners(grids: Sequence[Grid2], source: Shape, result: Shape) -> dict[int, int]:
    """For each axis of the result the axis of the source that moves along it. Raises Mixed if two do."""
    owners: dict[int, int] = {}
    for loop in (loop for grid in grids for loop in grid.loops):
        if owners.setdefault(loop.result, loop.source) != loop.source:
            raise Mixed("it brings rows and columns into one axis")
    for k in range(len(result)):
        if k in owners or len({grid.dst[k] for grid in grids}) == 1:
            continue
        moving = [axis for axis in range(len(source)) if len({grid.src[axis] for grid in grids}) > 1]
        along = [
            axis for axis in moving if len({(g.src[axis], g.dst[k]) for g in grids}) == len({g.dst[k] for g in grids})
        ]
        if len(along) != 1:
            raise Mixed("it brings rows and columns into one axis")
        owners[k] = along[0]
    return owners


def _matrices(grid: Grid2, lead: int) -> Iterator[Grid2]:
    """A grid of a source of three axes, matrix by matrix."""
    own = [loop for loop in grid.loops if lead and loop.source == 0]
    rest = tuple(loop for loop in grid.loops if loop not in own)
    for at in product(*(range(loop.extent) for loop in own)):
        src, dst = list(grid.src), list(grid.dst)
        for step, loop in zip(at, own, strict=True):
            src[0] += step * loop.src
            dst[loop.result] += step * loop.dst
        yield Grid2(tuple(src), tuple(dst), rest)


def _line(grid: Grid2, axis: int, axes: tuple[int, ...]) -> Line:
    loops = tuple((loop.extent, loop.src, loop.result, loop.dst) for loop in grid.loops if loop.source == axis)
    return Line(grid.src[axis], tuple((k, grid.dst[k]) for k in axes), loops)
