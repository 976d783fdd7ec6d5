"""A parameter in few bits as ops take it, and the numbers that it stands for."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from bringup.graphs.ops.op import op

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class Quantised(NamedTuple):
    """The arrays of a parameter of `shape`, and how they are read; the formula is that of `core.form.Form`.

    `codes` are whole numbers: with `values` > 1 so many in a word along `axis`, each of `bits` bits, the first in the
    low ones; `signed` ones of less than 8 bits are in two's complement. With a `table`, a code is an index into it, and
    with a `scale_table` a scale is one. Other arrays have one value for each `block` of the parameter, `outer_scales`
    and `outer_minimums` for each `outer_block`: a number a dimension. `zero_bits` are those of signed zeros in bytes;
    0 for others. `index` says for each position of dimension `indexed` which scale it has; `block` is 1 there.
    Computed in float32; `dtype` is that of products with the parameter.
    """

    codes: Tensor
    scales: Tensor
    zeros: Tensor | None
    minimums: Tensor | None
    outer_scales: Tensor | None
    outer_minimums: Tensor | None
    index: Tensor | None
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


@op("")
def dequantise(weight: Quantised) -> Tensor:
    """The whole parameter, in the dtype of products with it."""
    return in_float32(weight).to(dtype_of(weight))


def dtype_of(weight: Quantised) -> torch.dtype:
    import torch

    return getattr(torch, weight.dtype)


def in_float32(weight: Quantised) -> Tensor:
    """(code - offset - zero) · (scale · outer scale) + minimum · outer minimum, of `weight.shape`."""
    codes = _codes(weight)
    values = codes.float() if weight.table is None else _looked_up(weight.table, codes)
    if weight.offset:
        values = values - weight.offset
    if weight.zeros is not None:
        zeros = _in_twos_complement(weight.zeros, weight.zero_bits) if weight.zero_bits else weight.zeros
        values = values - _indexed(weight, _spread(zeros.float(), weight.block, weight.shape, weight.indexed))
    scales = weight.scales.float() if weight.scale_table is None else _looked_up(weight.scale_table, weight.scales)
    values = values * _scaled(weight, scales, weight.outer_scales)
    if weight.minimums is not None:
        values = values + _scaled(weight, weight.minimums.float(), weight.outer_minimums)
    return values


def some_of(weight: Quantised, chosen_N: Tensor) -> Quantised:
    """The indices `chosen_N` of the first dimension, as a parameter with N of them."""

    def taken(part: Tensor | None, block: tuple[int, ...]) -> Tensor | None:
        if part is None or part.shape[0] == 1:
            return part
        return part[chosen_N // block[0]] if block[0] > 1 else part[chosen_N]

    first = weight.axis == 0 and weight.values > 1
    index = weight.index if weight.index is None or weight.indexed else weight.index[chosen_N]
    return weight._replace(
        codes=_of_words(weight, chosen_N) if first else weight.codes[chosen_N],
        scales=taken(weight.scales, weight.block),
        zeros=taken(weight.zeros, weight.block),
        minimums=taken(weight.minimums, weight.block),
        outer_scales=taken(weight.outer_scales, weight.outer_block),
        outer_minimums=taken(weight.outer_minimums, weight.outer_block),
        index=index,
        shape=(chosen_N.shape[0], *weight.shape[1:]),
        values=1 if first else weight.values,
        block=(1, *weight.block[1:]),
        outer_block=(1, *weight.outer_block[1:]) if weight.outer_block else (),
    )


def _codes(weight: Quantised) -> Tensor:
    """The codes as whole numbers, one an element."""
    import torch

    codes, axis = weight.codes, weight.axis
    if weight.values > 1:
        shifts = torch.arange(weight.values, dtype=codes.dtype) * weight.bits
        shifts = shifts.view(-1, *(1 for _ in codes.shape[axis + 1 :]))
        codes = torch.bitwise_and(torch.bitwise_right_shift(codes.unsqueeze(axis + 1), shifts), (1 << weight.bits) - 1)
        codes = codes.flatten(axis, axis + 1)
    return _in_twos_complement(codes, weight.bits) if weight.signed and weight.bits < 8 else codes


def _of_words(weight: Quantised, chosen_N: Tensor) -> Tensor:
    """The codes of some indices of the dimension along which they are packed."""
    import torch

    words = weight.codes[chosen_N // weight.values]
    shifts = (chosen_N % weight.values * weight.bits).to(words.dtype).view(-1, *(1 for _ in words.shape[1:]))
    return torch.bitwise_and(torch.bitwise_right_shift(words, shifts), (1 << weight.bits) - 1)


def _in_twos_complement(codes: Tensor, bits: int) -> Tensor:
    half = 1 << (bits - 1)
    return (codes.int() ^ half) - half


def _looked_up(table: Tensor, codes: Tensor) -> Tensor:
    return table.index_select(0, codes.flatten().int()).view(codes.shape)


def _scaled(weight: Quantised, values: Tensor, outer: Tensor | None) -> Tensor:
    """Scales, or minimums, for each element; multiplied by the outer ones."""
    spread = _indexed(weight, _spread(values, weight.block, weight.shape, weight.indexed))
    return spread if outer is None else spread * _spread(outer, weight.outer_block, weight.shape)


def _spread(values: Tensor, block: tuple[int, ...], shape: tuple[int, ...], without: int = -1) -> Tensor:
    """Each value once for each index of its block; a dimension with one value is left to broadcast."""
    for axis, (size, whole) in enumerate(zip(block, shape, strict=True)):
        if axis != without and size > 1 and values.shape[axis] > 1:
            sizes = [-1] * (values.dim() + 1)
            sizes[axis + 1] = size
            values = values.unsqueeze(axis + 1).expand(sizes).flatten(axis, axis + 1)
            if values.shape[axis] > whole:  # the last block is short
                values = values.narrow(axis, 0, whole)
    return values


def _indexed(weight: Quantised, values: Tensor) -> Tensor:
    """For each position of the dimension that has an index, the value that this names."""
    return values if weight.index is None else values.index_select(weight.indexed, weight.index)
