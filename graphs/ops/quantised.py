"""A quantised parameter as an input of ops, and its dequantisation."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from bringup.graphs.ops.op import op

if TYPE_CHECKING:
    import torch
    from torch import Tensor


AT_A_TIME = 1 << 16  # elements that are dequantised at once if the size is free: 256 kB in float32


class Quantised(NamedTuple):
    """The arrays of a parameter of `shape`, and their interpretation; the formula is that of `core.form.Form`.

    `codes` are integers. With `values` > 1, a word along `axis` holds this many, each of `bits` bits, the first in the
    low bits; `signed` codes of less than 8 bits are in two's complement. With a `table`, codes are indices into it;
    with a `scale_table`, scales are. `code_dtype` and `scale_dtype` are those of the checkpoint, which codes and scales
    represent; "" if the table is the form's own. Other arrays have one value for each `block` of the parameter,
    `outer_scales` and `outer_minimums` for each `outer_block`: one size for each dimension. `zero_bits` is the width of
    signed zero points in bytes; 0 for others. `block_of` has the index of the scale for each index of dimension
    `indexed`; `block` is 1 there.
    Computed in float32; `dtype` is that of products with the parameter. `activations` is the dtype that products round
    the other factor to: "int8" or, for float8 only, "fp8"; "" does not round.
    """

    codes: Tensor
    scales: Tensor
    zeros: Tensor | None
    minimums: Tensor | None
    outer_scales: Tensor | None
    outer_minimums: Tensor | None
    block_of: Tensor | None
    table: Tensor | None
    scale_table: Tensor | None
    shape: tuple[int, ...]
    axis: int
    values: int
    bits: int
    signed: bool
    zero_bits: int
    offset: int
    block: tuple[int, ...]
    outer_block: tuple[int, ...]
    indexed: int
    dtype: str
    code_dtype: str
    scale_dtype: str
    activations: str


@op("")
def dequantise(weight: Quantised) -> Tensor:
    """The complete parameter, in the dtype of products with it."""
    return in_float32(weight).to(dtype_of(weight))


def dtype_of(weight: Quantised) -> torch.dtype:
    import torch

    return getattr(torch, weight.dtype)


def in_float32(weight: Quantised) -> Tensor:
    """(code - offset - zero) · (scale · outer scale) + minimum · outer minimum, of `weight.shape`.

    Computed with a dimension for each block, along which arrays are broadcast: compilers then need no copy of a scale
    for each element, and emit a single loop.
    """
    cuts = tuple(_cuts(weight, axis) for axis in range(len(weight.shape)))
    codes = _codes(weight, cuts)
    values = codes.float() if weight.table is None else _looked_up(weight.table, codes)
    if weight.offset:
        values = values - weight.offset
    if weight.zeros is not None:
        zeros = _in_twos_complement(weight.zeros, weight.zero_bits) if weight.zero_bits else weight.zeros
        values = values - _by_block(weight, zeros.float(), cuts)
    scales = weight.scales.float() if weight.scale_table is None else _looked_up(weight.scale_table, weight.scales)
    values = values * _scaled(weight, scales, weight.outer_scales, cuts)
    if weight.minimums is not None:
        values = values + _scaled(weight, weight.minimums.float(), weight.outer_minimums, cuts)
    return values.reshape(weight.shape)


def some_of(weight: Quantised, rows_N: Tensor) -> Quantised:
    """The indices `rows_N` of the first dimension, as a parameter of size N along it."""

    def taken(part: Tensor | None, block: tuple[int, ...]) -> Tensor | None:
        if part is None or part.shape[0] == 1:
            return part
        return part[rows_N // block[0]] if block[0] > 1 else part[rows_N]

    first = weight.axis == 0 and weight.values > 1
    along = weight.block_of is not None and weight.indexed == 0
    return weight._replace(
        codes=_of_words(weight, rows_N) if first else weight.codes[rows_N],
        scales=taken(weight.scales, weight.block) if not along else weight.scales,
        zeros=taken(weight.zeros, weight.block) if not along else weight.zeros,
        minimums=taken(weight.minimums, weight.block) if not along else weight.minimums,
        outer_scales=taken(weight.outer_scales, weight.outer_block),
        outer_minimums=taken(weight.outer_minimums, weight.outer_block),
        block_of=weight.block_of[rows_N] if along and weight.block_of is not None else weight.block_of,
        shape=(rows_N.shape[0], *weight.shape[1:]),
        values=1 if first else weight.values,
        block=(1, *weight.block[1:]),
        outer_block=(1, *weight.outer_block[1:]) if weight.outer_block else (),
    )


def pieces_of(weight: Quantised, at_a_time: int = AT_A_TIME) -> Iterator[Quantised]:
    """The rows of a weight in pieces of about `at_a_time` elements, which split no word and no block."""
    grain = math.lcm(weight.block[0], *weight.outer_block[:1], weight.values if weight.axis == 0 else 1)
    size, row = weight.shape[0], math.prod(weight.shape[1:])
    step = max(1, at_a_time // (grain * row)) * grain
    for start in range(0, size, step):
        stop = min(start + step, size)
        yield _rows(weight, start, stop) if (start, stop) != (0, size) else weight


def _rows(weight: Quantised, start: int, stop: int) -> Quantised:
    """The indices from `start` to `stop` of the first dimension; no block is split, and the last may be shorter."""

    def taken(part: Tensor | None, block: int) -> Tensor | None:
        return part if part is None or part.shape[0] == 1 else part[start // block : -(-stop // block)]

    words = weight.values if weight.axis == 0 else 1
    first, outer = weight.block[0], (*weight.outer_block, 1)[0]
    along = weight.block_of is not None and weight.indexed == 0
    return weight._replace(
        codes=weight.codes[start // words : -(-stop // words)],
        scales=taken(weight.scales, first) if not along else weight.scales,
        zeros=taken(weight.zeros, first) if not along else weight.zeros,
        minimums=taken(weight.minimums, first) if not along else weight.minimums,
        outer_scales=taken(weight.outer_scales, outer),
        outer_minimums=taken(weight.outer_minimums, outer),
        block_of=weight.block_of[start:stop] if along and weight.block_of is not None else weight.block_of,
        shape=(stop - start, *weight.shape[1:]),
    )


def _cuts(weight: Quantised, axis: int) -> tuple[int, ...]:
    """The sizes of blocks and words that divide a dimension, and each other, in order."""
    size = weight.shape[axis]
    found = [weight.values] if axis == weight.axis and weight.values > 1 else []
    for block in (weight.block[axis], *weight.outer_block[axis : axis + 1]):
        fits = all(block % other == 0 or other % block == 0 for other in found)
        if 1 < block < size and size % block == 0 and fits and block not in found:
            found.append(block)
    return tuple(sorted(found))


def _codes(weight: Quantised, cuts: tuple[tuple[int, ...], ...]) -> Tensor:
    """The codes as integers, one for each element."""
    import torch

    codes, packed = weight.codes, weight.values > 1
    blocks = [weight.values if packed and axis == weight.axis else 1 for axis in range(len(cuts))]
    codes = codes.reshape(_dimensions(weight, cuts, blocks))
    if packed:
        sizes = [
            extent if axis == weight.axis and step < weight.values else 1
            for axis, size in enumerate(weight.shape)
            for step, extent in _steps(size, cuts[axis])
        ]
        shifts = (torch.arange(weight.values, dtype=codes.dtype) * weight.bits).view(sizes)
        codes = _lowest(torch.bitwise_right_shift(codes, shifts), weight.bits)
    return _in_twos_complement(codes, weight.bits) if weight.signed and weight.bits < 8 else codes


def _steps(size: int, cuts: tuple[int, ...]) -> list[tuple[int, int]]:
    """The dimensions into which cuts divide a dimension of `size`: the step of each in indices, and its length."""
    return [(low, high // low) for low, high in pairwise((1, *cuts, size))][::-1]


def _dimensions(weight: Quantised, cuts: tuple[tuple[int, ...], ...], blocks: Sequence[int]) -> list[int]:
    """The shape, by cuts, of an array with a value for each block."""
    return [
        extent if step >= block else 1
        for size, own, block in zip(weight.shape, cuts, blocks, strict=True)
        for step, extent in _steps(size, own)
    ]


def _of_words(weight: Quantised, rows_N: Tensor) -> Tensor:
    """The codes at some indices of the dimension along which they are packed."""
    import torch

    words = weight.codes[rows_N // weight.values]
    shifts = (rows_N % weight.values * weight.bits).to(words.dtype).view(-1, *(1 for _ in words.shape[1:]))
    return _lowest(torch.bitwise_right_shift(words, shifts), weight.bits)


def _lowest(codes: Tensor, bits: int) -> Tensor:
    import torch

    return torch.bitwise_and(codes, (1 << bits) - 1)


def _in_twos_complement(codes: Tensor, bits: int) -> Tensor:
    half = 1 << (bits - 1)
    return (codes.int() ^ half) - half


def _looked_up(table: Tensor, codes: Tensor) -> Tensor:
    return table.index_select(0, codes.flatten().int()).view(codes.shape)


def _scaled(weight: Quantised, values: Tensor, outer: Tensor | None, cuts: tuple[tuple[int, ...], ...]) -> Tensor:
    """Scales or minimums in broadcastable shape, multiplied by the outer ones."""
    own = _by_block(weight, values, cuts)
    return own if outer is None else own * _by_block(weight, outer, cuts, weight.outer_block)


def _by_block(
    weight: Quantised, values: Tensor, cuts: tuple[tuple[int, ...], ...], outer: tuple[int, ...] = ()
) -> Tensor:
    """An array with a value for each block, with a dimension for each cut."""
    blocks = list(outer or weight.block)
    if weight.block_of is not None and not outer:
        values = values.index_select(weight.indexed, weight.block_of)
    for axis, (size, whole) in enumerate(zip(blocks, weight.shape, strict=True)):
        if values.shape[axis] == 1:
            blocks[axis] = whole
        elif size > 1 and size not in cuts[axis]:
            values, blocks[axis] = _spread(values, axis, size, whole), 1
    return values.reshape(_dimensions(weight, cuts, blocks))


def _spread(values: Tensor, axis: int, block: int, size: int) -> Tensor:
    """Repeats each value along a dimension for each index of its block; the last block may be shorter."""
    sizes = [-1] * (values.dim() + 1)
    sizes[axis + 1] = block
    spread = values.unsqueeze(axis + 1).expand(sizes).flatten(axis, axis + 1)
    return spread.narrow(axis, 0, size) if spread.shape[axis] > size else spread
