"""torch's operations that move elements, for numpy's arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeGuard, cast

import numpy as np

Array = np.ndarray[Any, Any]


def is_array(value: object) -> TypeGuard[Array]:
    return isinstance(value, np.ndarray)


def moved(name: str, array: Array, *given: Any, **named: Any) -> Any:
    """The result of a method of a tensor. Raises TypeError and ValueError for arguments that it does not have here."""
    return MOVED[name](array, *given, **named)


def _sizes(given: tuple[Any, ...]) -> tuple[int, ...]:
    return tuple(cast("list[int]", given[0])) if len(given) == 1 and isinstance(given[0], tuple | list) else given


def _view(array: Array, *shape: Any) -> Array:
    return array.reshape(_sizes(shape))


def _split(array: Array, sizes: Any, dim: int = 0) -> tuple[Array, ...]:
    """Parts of a size each, or of these sizes."""
    length = array.shape[dim]
    ends = range(sizes, length, sizes) if isinstance(sizes, int) else np.cumsum(sizes)[:-1]
    if not isinstance(sizes, int) and sum(sizes) != length:
        raise ValueError
    return tuple(np.split(array, list(ends), axis=dim))


def _chunk(array: Array, chunks: int, dim: int = 0) -> tuple[Array, ...]:
    return _split(array, -(-array.shape[dim] // chunks), dim)


def _unbind(array: Array, dim: int = 0) -> tuple[Array, ...]:
    return tuple(np.moveaxis(array, dim, 0))


def _flatten(array: Array, start_dim: int = 0, end_dim: int = -1) -> Array:
    start, end = start_dim % array.ndim, end_dim % array.ndim
    return array.reshape(*array.shape[:start], -1, *array.shape[end + 1 :])


def _expand(array: Array, *shape: Any) -> Array:
    sizes = _sizes(shape)
    own = (1,) * (len(sizes) - array.ndim) + array.shape
    return np.broadcast_to(array, tuple(old if new == -1 else new for new, old in zip(sizes, own, strict=True)))


def _same(array: Array, *given: Any, **named: Any) -> Array:
    return array


def _transpose(array: Array, one: int, other: int) -> Array:
    return array.swapaxes(one, other)


def _permute(array: Array, *axes: Any) -> Array:
    return array.transpose(_sizes(axes))


def _unsqueeze(array: Array, dim: int) -> Array:
    return np.expand_dims(array, dim if dim >= 0 else array.ndim + 1 + dim)


def _squeeze(array: Array, dim: int) -> Array:
    return array.squeeze(dim) if array.shape[dim] == 1 else array


def _size(array: Array, dim: int | None = None) -> Any:
    return array.shape if dim is None else array.shape[dim]


def _broadcast(array: Array, *shape: Any) -> Array:
    return np.broadcast_to(array, _sizes(shape))


MOVED: Mapping[str, Callable[..., Any]] = {
    "view": _view, "reshape": _view, "split": _split, "chunk": _chunk, "unbind": _unbind, "flatten": _flatten,
    "transpose": _transpose, "permute": _permute, "unsqueeze": _unsqueeze, "squeeze": _squeeze, "size": _size,
    "expand": _expand, "broadcast_to": _broadcast,
    "contiguous": _same, "to": _same, "float": _same, "type": _same, "clone": _same,
}  # fmt: skip
