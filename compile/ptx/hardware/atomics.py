"""Atomic operations on global and shared memory (PTX ISA, "Parallel Synchronization": atom, red).

Lanes are processed in the order of their threads, or in the random order of the launch. Lanes with the same address are
processed in separate rounds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bringup.compile.ptx.assembly.errors import Fault
from bringup.compile.ptx.assembly.kernel import Instruction
from bringup.compile.ptx.hardware.memory import check_global, check_shared
from bringup.compile.ptx.hardware.spaces import GLOBAL_BASE, SHARED_BASE
from bringup.compile.ptx.hardware.values import round_bf16, widen_bf16

if TYPE_CHECKING:
    from bringup.compile.ptx.hardware.context import Context, Mask

Array = NDArray[Any]
Combine = Callable[[Array, Array], Array]
DTYPES: dict[str, np.dtype[Any]] = {
    **{kind: np.dtype(np.uint32) for kind in ("u32", "b32", "f16x2", "bf16x2")},
    **{kind: np.dtype(np.uint64) for kind in ("u64", "b64")},
    **{kind: np.dtype(np.uint16) for kind in ("b16", "f16", "bf16")},
    "s32": np.dtype(np.int32),
    "s64": np.dtype(np.int64),
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
}


def _increment(old: Array, limit: Array) -> Array:
    return np.where(old >= limit, 0, old + 1).astype(old.dtype)


def _decrement(old: Array, limit: Array) -> Array:
    return np.where((old == 0) | (old > limit), limit, old - 1).astype(old.dtype)


def _exchange(old: Array, value: Array) -> Array:
    return value


_COMBINE: dict[str, Combine] = {
    "add": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "exch": _exchange,
    "inc": _increment,
    "dec": _decrement,
}


def atomic_global(
    context: Context,
    operation: str,
    kind: str,
    address: Array,
    offset: int,
    value: Array,
    compare: Array | None,
    mask: Mask,
    instruction: Instruction,
    order: str,
) -> Array:
    """The previous value of each lane's word. `compare` is required for cas. bf16 and f16 are bit patterns.

    Raises `Fault` for an access that is out of bounds or misaligned, and for an operation that PTX does not define.
    """
    dtype = DTYPES[kind]
    index = context.full(np.asarray(address).astype(np.int64) + np.int64(offset - GLOBAL_BASE))
    active = context.full(np.True_ if mask is None else mask)
    selected = index[active]
    if not selected.size:
        return np.zeros((1, 1), dtype)
    check_global(context, index, active, selected, dtype.itemsize, instruction, "atomic")
    served = _serving_order(context, selected.size)
    for observer in context.launch.observers:
        observer.atomic_global(context, instruction, index, active, dtype.itemsize, order, served)
    words = context.device.vectors(dtype.itemsize, dtype.itemsize).view(dtype)
    return _apply(context, words, selected, active, served, operation, kind, value, compare)


def atomic_shared(
    context: Context,
    operation: str,
    kind: str,
    address: Array,
    offset: int,
    value: Array,
    compare: Array | None,
    mask: Mask,
    instruction: Instruction,
    order: str,
) -> Array:
    """Like `atomic_global`, on the shared memory of the block."""
    dtype = DTYPES[kind]
    relative = context.full(np.asarray(address).astype(np.int64) + np.int64(offset - SHARED_BASE))
    active = context.full(np.True_ if mask is None else mask)
    selected = relative[active]
    if not selected.size:
        return np.zeros((1, 1), dtype)
    check_shared(context, relative, active, selected, dtype.itemsize, instruction, "atomic")
    words = context.shared.vectors(dtype.itemsize, dtype.itemsize).view(dtype)
    places = (relative + context.shared.origins)[active]
    served = _serving_order(context, selected.size)
    return _apply(context, words, places, active, served, operation, kind, value, compare)


def _serving_order(context: Context, count: int) -> Array:
    """The active lanes in the order in which they are processed."""
    random = context.launch.random
    return np.arange(count) if random is None else random.permutation(count)


def _apply(
    context: Context,
    words: Array,
    places: Array,
    active: Array,
    served: Array,
    operation: str,
    kind: str,
    value: Array,
    compare: Array | None,
) -> Array:
    dtype = words.dtype
    index = places // dtype.itemsize
    values = context.full(_bits(value, dtype))[active]
    expected = None if compare is None else context.full(_bits(compare, dtype))[active]
    old = np.zeros(index.size, dtype)
    combine = _combination(operation, kind)
    for lanes in _rounds(index, served):
        before = words[index[lanes]]
        old[lanes] = before
        if expected is None:
            words[index[lanes]] = combine(before, values[lanes])
        else:
            words[index[lanes]] = np.where(before == expected[lanes], values[lanes], before)
    result = np.zeros(active.shape, dtype)
    result[active] = old
    return result


def _bits(value: Array, dtype: np.dtype[Any]) -> Array:
    """The value with the dtype of the words: values of the same width are reinterpreted, never converted."""
    array = np.asarray(value)
    return array.view(dtype) if array.dtype.itemsize == dtype.itemsize else array.astype(dtype)


def _rounds(index: Array, order: Array) -> list[Array]:
    """Lanes in `order`, split into rounds so that no address occurs twice in a round, and earlier lanes come first."""
    by_address = order[np.argsort(index[order], kind="stable")]
    ordered = index[by_address]
    begins = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
    rank = np.arange(ordered.size) - np.repeat(begins, np.diff(np.append(begins, ordered.size)))
    if not rank.any():
        return [by_address]
    by_rank = np.argsort(rank, kind="stable")
    return np.split(by_address[by_rank], np.flatnonzero(np.diff(rank[by_rank])) + 1)


def _combination(operation: str, kind: str) -> Combine:
    if operation == "cas":
        return _exchange
    if kind in ("f16", "f16x2"):
        return _halves(_COMBINE[operation], _add_f16 if operation == "add" else None, kind)
    if kind in ("bf16", "bf16x2"):
        return _halves(_COMBINE[operation], _add_bf16 if operation == "add" else None, kind)
    return _COMBINE[operation]


def _halves(bitwise: Combine, add: Combine | None, kind: str) -> Combine:
    """The operation on each 16-bit half. Only `add` interprets halves as floats; exch exchanges the bits."""
    if add is None:
        if bitwise is not _exchange:
            raise Fault(f"an atomic operation on {kind} that PTX does not have")
        return bitwise

    def combine(old: Array, value: Array) -> Array:
        sums = add(np.ascontiguousarray(old).view(np.uint16), np.ascontiguousarray(value).view(np.uint16))
        return sums.view(old.dtype)

    return combine


def _add_f16(old: Array, value: Array) -> Array:
    return (old.view(np.float16) + value.view(np.float16)).view(np.uint16)


def _add_bf16(old: Array, value: Array) -> Array:
    return np.ascontiguousarray(round_bf16(widen_bf16(old) + widen_bf16(value)))
