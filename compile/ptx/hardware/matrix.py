"""Matrix products: mma.sync of a warp and wgmma.mma_async of a warp group (PTX ISA, "Warp Level Matrix Instructions"
and "Asynchronous Warpgroup Level Matrix Instructions").

Products are exact. Sums are in float64 and rounded once, or in float32 if the launch is not `exact`. Tensor cores
truncate in ways that NVIDIA does not document, so the last bits of a sum may differ from those of a device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bringup.compile.ptx.assembly.kernel import Instruction
from bringup.compile.ptx.hardware.fragments import WIDTHS, Descriptor, left_fragment, numbers, right_fragment
from bringup.compile.ptx.hardware.memory import SHIFT
from bringup.compile.ptx.hardware.spaces import SHARED_BASE

if TYPE_CHECKING:
    from bringup.compile.ptx.hardware.context import Context, Mask

Array = NDArray[Any]
GROUP = 128  # threads of a warp group


def multiply(
    context: Context,
    a: list[Array],
    b: list[Array],
    c: list[Array],
    shape: tuple[int, int, int],
    types: tuple[str, str, str],
    saturate: bool,
    mask: Mask,
    instruction: Instruction,
) -> list[Array]:
    """mma.sync: D = A B + C for every warp, with `shape` (16, 8, k). `types` are those of D (and C), A and B.

    C and D are float32, int32, or words of two float16. `saturate` clamps int32 sums.
    """
    kind, left_kind, right_kind = types
    left, right = left_fragment(_words(context, a), left_kind), right_fragment(_words(context, b), right_kind)
    product = _product(context, left, right, kind)  # warps, 16, 8
    parts = product.reshape(-1, 2, 8, 4, 2).transpose(0, 2, 3, 1, 4)  # warp g t row column
    return _accumulate(context, parts.reshape(context.block_count, context.thread_count, 4), c, kind, saturate)


def multiply_group(
    context: Context,
    d: list[Array],
    a: list[Array] | Array,
    b: Array,
    scale_d: bool | Array,
    negate_a: bool,
    negate_b: bool,
    transpose_a: bool,
    transpose_b: bool,
    shape: tuple[int, int, int],
    types: tuple[str, str, str],
    mask: Mask,
    instruction: Instruction,
) -> list[Array]:
    """wgmma.mma_async: D = A B + D for every warp group, or A B if `scale_d` is false; `shape` is (64, n, k).

    A is in registers or, like B, in shared memory, addressed by a descriptor.
    """
    kind, left_kind, right_kind = types
    rows, columns, depth = shape
    blocks, groups = context.block_count, context.thread_count // GROUP
    active = np.ones((blocks, groups), np.bool_) if mask is None else context.full(mask)[:, ::GROUP]
    if isinstance(a, list):
        left = left_fragment(_words(context, a), left_kind).reshape(blocks, groups, rows, depth)
    else:
        left = _shared_tile(context, a, rows, depth, left_kind, transpose_a, active, instruction)
    right = _shared_tile(context, b, columns, depth, right_kind, transpose_b, active, instruction)
    product = _product(context, -left if negate_a else left, right, kind)  # B, groups, 64, n
    if negate_b:
        product = -product
    parts = product.reshape(blocks, groups, 4, 2, 8, columns // 8, 4, 2)  # .. warp row g n t column
    sums = parts.transpose(0, 1, 2, 4, 6, 5, 3, 7).reshape(blocks, context.thread_count, columns // 2)
    before = d if scale_d is True else [np.where(scale_d, each, each.dtype.type(0)) for each in map(np.asarray, d)]
    return _accumulate(context, sums, before, kind, saturate=False)


def _words(context: Context, registers: list[Array]) -> Array:
    return np.stack([context.full(register) for register in registers], -1)


def _product(context: Context, left: Array, right: Array, kind: str) -> Array:
    if context.launch.exact or kind == "s32":
        left, right = left.astype(np.float64), right.astype(np.float64)
    return np.matmul(left, right.swapaxes(-1, -2))


def _accumulate(context: Context, sums: Array, before: list[Array], kind: str, saturate: bool) -> list[Array]:
    """The accumulator registers: `sums` (B, T, values) plus their previous values."""
    if kind == "f16":
        results: list[Array] = []
        for index, word in enumerate(before):
            pair = np.ascontiguousarray(context.full(word))[..., None].view(np.float16)
            total = (sums[..., 2 * index : 2 * index + 2] + pair).astype(np.float16)
            results.append(total.view(np.uint32)[..., 0])
        return results
    totals = (sums[..., index] + value for index, value in enumerate(before))
    if kind == "s32":
        return [_integer(total, saturate) for total in totals]
    return [total.astype(np.float32) for total in totals]


def _integer(total: Array, saturate: bool) -> Array:
    clamped = np.clip(total, -2147483648.0, 2147483647.0) if saturate else total
    return clamped.astype(np.int64).astype(np.int32)


def _shared_tile(
    context: Context,
    descriptors: Array,
    extent: int,
    depth: int,
    kind: str,
    transposed: bool,
    active: Array,
    instruction: Instruction,
) -> Array:
    """The operand of each active warp group: (B, groups, extent, depth).

    Raises `Fault` if it is out of bounds, or if its descriptor has a base offset, which the emulator does not support.
    """
    width = WIDTHS[kind]
    bits = context.full(np.asarray(descriptors).astype(np.int64))[:, ::GROUP]
    result = np.zeros((*bits.shape, extent, depth), np.float32)
    elements = context.shared.vectors(width, width)
    for value in np.unique(bits[active]):
        descriptor = Descriptor.decode(int(value))
        if descriptor.base:
            context.fault(
                instruction, "a wgmma descriptor with a base offset: the emulator has only tiles at 1024 bytes"
            )
        tile = descriptor.addresses(extent, depth, width, transposed=transposed) - SHARED_BASE
        rows, groups = np.nonzero(active & (bits == value))
        if tile.min() < 0 or tile.max() + width > context.shared.nbytes:
            place = f"bytes {int(tile.min())} to {int(tile.max()) + width - 1}"
            context.fault(instruction, f"wgmma reads {place} of {context.shared.nbytes} bytes of shared memory")
        for observer in context.launch.observers:
            observer.read_operand(context, instruction, rows, groups, tile, width)
        taken = elements.take((tile + context.shared.origins[rows][:, :, None]) >> SHIFT[width])
        result[rows, groups] = numbers(taken, kind)
    return result


def group_fence(context: Context, mask: Mask, instruction: Instruction) -> None:
    """wgmma.fence: orders earlier accesses to registers and shared memory before later wgmma. No effect here."""


def group_commit(context: Context, mask: Mask, instruction: Instruction) -> None:
    """wgmma.commit_group."""
    for observer in context.launch.observers:
        observer.commit_operands(context, instruction, mask)


def group_wait(context: Context, pending: int, mask: Mask, instruction: Instruction) -> None:
    """wgmma.wait_group: waits for all groups but the last `pending`. Products are computed when they are issued."""
    for observer in context.launch.observers:
        observer.wait_operands(context, instruction, pending, mask)
