"""The movement of the arrays of a quantised matrix: the movement of the matrix, projected on its blocks.

A scale belongs to a block of the matrix. A movement that does not split blocks moves scales as it moves blocks: its
loops inside of blocks are removed, and the others step from block to block. A granule is the image of a block along an
axis of the result. If a movement splits blocks, granules are parts of them, and several have the same scale.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import NamedTuple

from bringup.adapters.algebra.copy_nest import Loop2, Nest, row_major
from bringup.spec import Shape

MOST = 1 << 16  # nests of one part


class Move(NamedTuple):
    """The movement of one nest: from indices `src` of a matrix of `shape`, by loops, to indices `dst` of the result.

    `nest` is the original, with its source and the dtype as which elements are read.
    """

    nest: Nest
    shape: Shape
    src: Shape
    dst: Shape
    loops: tuple[Loop2, ...]


@dataclass(frozen=True, slots=True)
class Granules:
    """Moves of granules. `matrix` and `result`: the indices of each axis in a granule; `shape` is the result's."""

    moves: tuple[Move, ...]
    matrix: Shape
    result: Shape
    shape: Shape


def granules(moves: Sequence[Move], block: Shape, shape: Shape) -> Granules:
    """The largest granules that tile a result of `shape`, for blocks of a matrix; block 0 is a complete axis."""
    found = Granules(tuple(moves), (1,) * len(block), (1,) * len(shape), shape)
    for axis in reversed(range(len(block))):
        found = next(_coarser(found, axis, block[axis]), found)
    return found


def _coarser(fine: Granules, axis: int, block: int) -> Iterator[Granules]:
    """Granules with more than one index of an axis, the largest first."""
    wholes = [move.shape[axis] for move in fine.moves]
    most = block if 0 < block <= min(wholes) else math.gcd(*wholes)
    for size in (size for size in range(most, 1, -1) if most % size == 0):
        moves = [_between(move, axis, size, fine.shape) for move in fine.moves]
        along = {k for found in moves if found for k in (found[1],)}
        if all(moves) and len(along) == 1 and fine.result[k := along.pop()] == 1:
            yield Granules(
                tuple(found[0] for found in moves if found),
                (*fine.matrix[:axis], size, *fine.matrix[axis + 1 :]),
                (*fine.result[:k], size, *fine.result[k + 1 :]),
                fine.shape,
            )


def _between(move: Move, axis: int, size: int, shape: Shape) -> tuple[Move, int] | None:
    """A move without its loops inside of granules of an axis, and the axis of the result along which these extend."""
    own = [loop for loop in move.loops if loop.source == axis]
    others = [loop for loop in move.loops if loop.source != axis]
    inner: list[Loop2] = []
    for loop in own:
        extent, _, src, k, dst = loop
        to_the_end = move.src[axis] + extent == move.shape[axis] and move.dst[k] + extent == shape[k]
        if src % size == 0:
            others.append(loop)
        elif src == dst == 1 and len(own) == 1 and extent % size and to_the_end:  # the last granule is shorter
            inner.append(loop._replace(extent=size))
            others.append(Loop2(-(-extent // size), axis, size, k, size))
        elif extent * src <= size:
            inner.append(loop)
        elif size % src == 0 and extent % (size // src) == 0:
            each = size // src
            inner.append(loop._replace(extent=each))
            others.append(Loop2(extent // each, axis, size, k, dst * each))
        else:
            return None
    if not inner or move.src[axis] % size:
        return None
    k = inner[0].result
    dense = _is_dense([(loop.extent, loop.src) for loop in inner], size)
    dense = dense and _is_dense([(loop.extent, loop.dst) for loop in inner], size)
    together = {loop.result for loop in inner} == {k} and move.dst[k] % size == 0
    if not dense or not together or any(loop.result == k and loop.dst % size for loop in others):
        return None
    return move._replace(loops=tuple(others)), k


def _is_dense(loops: list[tuple[int, int]], size: int) -> bool:
    """Whether loops (extent, step) reach each of `size` consecutive indices once."""
    reached = 1
    for extent, step in sorted(loops, key=lambda loop: loop[1]):
        if step != reached:
            return False
        reached *= extent
    return reached == size


def part_nests(found: Granules, block: Shape, part: Shape, view: str) -> list[Nest] | None:
    """The nests that fill a part's array, by granules, from arrays with one value for each block; None for too many.

    `part` is the shape of the array that they fill. Sources' shapes follow from those of the matrices.
    """
    nests: list[Nest] = []
    result = row_major(part)
    for move in found.moves:
        blocks = [size or whole for size, whole in zip(block, move.shape, strict=True)]
        strides = row_major([-(-whole // size) for size, whole in zip(blocks, move.shape, strict=True)])
        stays: list[tuple[int, int, int]] = []
        cut: list[Loop2] = []  # from granule to granule of one block
        for loop in _at_blocks(move.loops, blocks):
            size = blocks[loop.source]
            if loop.src % size:
                cut.append(loop)
            else:
                to = loop.dst // found.result[loop.result] * result[loop.result]
                stays.append((loop.extent, loop.src // size * strides[loop.source], to))
        if len(nests) + math.prod(loop.extent for loop in cut) > MOST:
            return None
        for at in product(*(range(loop.extent) for loop in cut)):
            src, dst = list(move.src), list(move.dst)
            for i, loop in zip(at, cut, strict=True):
                src[loop.source] += i * loop.src
                dst[loop.result] += i * loop.dst
            first = sum(i // size * stride for i, size, stride in zip(src, blocks, strides, strict=True))
            to = sum(i // size * stride for i, size, stride in zip(dst, found.result, result, strict=True))
            loops = tuple(sorted((loop for loop in stays if loop[0] > 1), key=lambda loop: -loop[2]))
            nests.append(replace(move.nest, view=view, src=first, loops=loops, dst=to))
    return nests


def _at_blocks(loops: Sequence[Loop2], blocks: Sequence[int]) -> Iterator[Loop2]:
    """Loops that step from block to block, split from those that step inside of a block."""
    for loop in loops:
        extent, axis, src, k, dst = loop
        inside, cut = divmod(blocks[axis], src)
        if src % blocks[axis] and not cut and inside < extent and extent % inside == 0:
            yield Loop2(inside, axis, src, k, dst)
            yield Loop2(extent // inside, axis, src * inside, k, dst * inside)
        else:
            yield loop
