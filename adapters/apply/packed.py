"""A packed parameter: the arrays of the quantised matrices of its rule, moved as the rule moves the matrices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from bringup.adapters.algebra.computed import Computed
from bringup.adapters.algebra.copy_nest import Loop2, Nest, by_axes
from bringup.adapters.algebra.region import Region
from bringup.adapters.apply.packed_part import Granules, Move, granules, part_nests
from bringup.adapters.planning.plan import Entry
from bringup.graphs.core.form import WHOLE, FormPart
from bringup.graphs.core.packed_form import PackedForm
from bringup.graphs.core.signature import Declared
from bringup.spec import DTYPES, Shape, TensorInfo

if TYPE_CHECKING:
    import numpy as np

BY_MATRIX = WHOLE, WHOLE


class CannotPack(Exception):
    """The reason why a parameter that is read from quantised matrices is stored as floats."""


@dataclass(frozen=True, slots=True)
class Packed:
    """The packed form of a parameter, and the nests that fill each of its arrays, in the order of the parts."""

    packed: PackedForm
    nests: tuple[tuple[Nest, ...], ...]

    def entry(self, number: int, declared: Declared, entry: Entry) -> Entry:
        """The entry of one array of a parameter in this form."""
        region = Region(declared.axes, self.packed.stored_dtype(number), self.nests[number])
        sources = tuple(_part(source, number) for source in entry.sources)
        return Entry(declared, entry.rule, sources, region)


def packed(entry: Entry) -> Packed | None:
    """The packed form of a parameter; None if no source is quantised. Raises CannotPack."""
    matrices = {i: source for i, source in enumerate(entry.sources) if isinstance(source, Computed) and source.form}
    read = {nest.source for nest in entry.region.nests}
    formless = (source.formless for source in map(entry.sources.__getitem__, read) if isinstance(source, Computed))
    if reason := next(filter(None, formless), ""):
        raise CannotPack(reason)
    if not read & matrices.keys() or len(entry.region.shape) < 2:
        return None
    if read - matrices.keys():
        raise CannotPack("a part of it is not quantised")
    kinds = {(source.form, *(part.dtype for part in source.arrays)) for i, source in matrices.items() if i in read}
    if len(kinds) > 1 or len({len(matrices[i].shape) for i in read}) > 1:
        raise CannotPack("its parts are quantised in different ways")
    if entry.region.word > 1 or {nest.view for nest in entry.region.nests} != {matrices[min(read)].dtype}:
        raise CannotPack("its rule reads the bits of the numbers")
    moves = [
        Move(nest, matrices[nest.source].shape, *grid)
        for nest in entry.region.nests
        for grid in by_axes(nest, matrices[nest.source].shape, entry.region.shape)
    ]
    return _packed(entry, matrices[min(read)], moves)


def _packed(entry: Entry, matrix: Computed, moves: Sequence[Move]) -> Packed:
    form, shape, dimensions = matrix.form, entry.region.shape, len(matrix.shape)
    assert form
    found: dict[Shape, tuple[Granules, Shape]] = {}  # by block
    indexed, groups = -1, 0
    for part in form.parts():
        block = _block(part, dimensions)
        if form.index and part.block == form.block:
            groups = matrix.arrays[1].shape[-1]
            by_group, indexed = _without_columns(moves, shape, groups)
            block = (*block[:-1], 1)
            shape_of_groups = (*shape[:indexed], groups, *shape[indexed + 1 :])
            found[_block(part, dimensions)] = granules(by_group, block, shape_of_groups), block
        elif part.name != "index":
            found[block] = granules(moves, block, shape), block
    one = Granules(tuple(moves), (1,) * dimensions, (1,) * len(shape), shape)
    outer = found[_block(FormPart("", "", form.outer), dimensions)][0].result if form.outer else ()
    whole = found[_block(FormPart("", "", BY_MATRIX), dimensions)][0].result if form.input else ()
    packed = PackedForm(
        form=form, shape=shape, block=found[_block(FormPart("", "", form.block), dimensions)][0].result, outer=outer,
        indexed=indexed, groups=groups, dtypes=tuple(part.dtype for part in matrix.arrays), dtype=entry.declared.dtype,
        input=whole,
    )  # fmt: skip
    nests: list[tuple[Nest, ...]] = []
    for part, dtype in zip(form.parts(), packed.dtypes, strict=True):
        view = _bits(dtype)
        if part.name == "index":
            nests.append((_of_columns(moves, indexed, view),))
            continue
        each, block = (one, one.matrix) if part.name == "codes" else found[_block(part, dimensions)]
        moved = part_nests(each, block, packed.shape_of(part), view)
        if moved is None:
            raise CannotPack("its rule cuts blocks into too many pieces")
        nests.append(tuple(moved))
    _check_size(entry.declared, packed)
    return Packed(packed, tuple(nests))


def _block(part: FormPart, dimensions: int) -> Shape:
    return (*(1 for _ in range(dimensions - 2)), *part.block)


def _bits(dtype: str) -> str:
    """The dtype as which the elements of a part are read: unsigned integers for narrow ones."""
    known = DTYPES[dtype]
    if known.bits < 8:
        return "uint4"
    return "uint8" if known.kind == "float" and known.bits == 8 else dtype


def _check_size(declared: Declared, packed: PackedForm) -> None:
    if packed.nbytes >= declared.nbytes:
        raise CannotPack(f"its scales cannot follow its rule in less than the {declared.nbytes:,} bytes of its floats")


def _without_columns(moves: Sequence[Move], shape: Shape, groups: int) -> tuple[list[Move], int]:
    """The moves of one value for each group, if an index assigns columns to groups; and the result axis of columns."""
    found: list[Move] = []
    along = {loop.result for move in moves for loop in _columns(move)}
    k = along.pop() if len(along) == 1 else -1
    for move in moves:
        others = tuple(loop for loop in move.loops if loop not in _columns(move))
        whole = _count(_columns(move)) == move.shape[-1] == (shape[k] if k >= 0 else 0)
        if not whole or any(loop.result == k for loop in others) or _columns(move) != _columns(moves[0]):
            raise CannotPack("its rule moves a part of the columns that an index puts into groups")
        loops = (*others, Loop2(groups, len(move.shape) - 1, 1, k, 1))
        found.append(move._replace(shape=(*move.shape[:-1], groups), loops=loops))
    if len({move.nest.source for move in moves}) > 1:
        raise CannotPack("its matrices have an index each")
    return found, k


def _columns(move: Move) -> tuple[Loop2, ...]:
    return tuple(loop for loop in move.loops if loop.source == len(move.shape) - 1)


def _count(loops: Sequence[Loop2]) -> int:
    count = 1
    for loop in loops:
        count *= loop.extent
    return count


def _of_columns(moves: Sequence[Move], along: int, view: str) -> Nest:
    """The nest that moves an array with one value for each column as columns are moved."""
    loops = sorted(((loop.extent, loop.src, loop.dst) for loop in _columns(moves[0])), key=lambda loop: -loop[2])
    return replace(moves[0].nest, view=view, src=0, loops=tuple(loops), dst=moves[0].dst[along])


def _part(source: TensorInfo | Computed, number: int) -> TensorInfo | Computed:
    """One array of a matrix as a source."""
    if isinstance(source, TensorInfo) or source.form is None:
        return source
    region = source.arrays[number]
    grains = (tuple((1, 1) for _ in region.shape),)
    return Computed(
        f"{source.name}: {list(source.form.parts())[number].name}", (region,), region.shape, region.dtype, same,
        exact=True, inverse=both, grains=grains,
    )  # fmt: skip


def same(array: np.ndarray) -> np.ndarray:
    """The array, unchanged."""
    return array


def both(array: np.ndarray) -> tuple[np.ndarray, ...]:
    """The array as a tuple of one input."""
    return (array,)
