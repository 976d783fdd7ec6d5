# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""The first rows of a module's arguments and results: those of the tokens of a step, without padding."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor


def alike(ours: Tensor, further: Iterable[np.ndarray]) -> list[np.ndarray]:
    """The arrays with as many values in a row as a tensor, of floats or integers as the tensor is.

    In a file, integers are floats too. So floats without a fraction are either, if there is no other array.
    """
    sized = [array for array in further if ours[: len(array)].numel() == array.size] if ours.ndim else []
    whole = [array for array in sized if array.dtype.kind == "f" and (array == np.round(array)).all()]
    others = [array for array in sized if not any(array is other for other in whole)]
    return [array for array in others if (array.dtype.kind == "f") == ours.is_floating_point()] or whole


def is_float(value: object) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def first_rows(given: Any, count: int) -> np.ndarray | None:
    """The first `count` rows, as float32, of a tensor or of the first of several; None for other tensors."""
    first = given[0] if isinstance(given, tuple) and given else given
    if not isinstance(first, Tensor) or not first.is_floating_point() or first.ndim < 2 or len(first) < count:
        return None
    return first.detach()[:count].float().numpy()


def rows_like(given: Any, like: np.ndarray) -> np.ndarray:
    """The first rows of a tensor, or of the first of several, as float32 of the shape of `like`."""
    first: Tensor = given[0] if isinstance(given, tuple) else given
    return first.detach()[: len(like)].float().numpy().reshape(like.shape)


def with_rows(given: Any, rows: np.ndarray) -> Any:
    """A copy of a tensor, or of the only one of a tuple, with other first rows; rows of padding are the same."""
    if isinstance(given, tuple):
        return (with_rows(given[0], rows),)
    other = given.clone()
    first = other[: len(rows)]
    first.copy_(torch.from_numpy(rows.reshape(first.shape)).to(other.dtype))
    return other
