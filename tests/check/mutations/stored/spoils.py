"""Functions that modify a quantised checkpoint: tensors by the ends of their names, config keys, modules."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tests.check.mutations.mutation import Trial

Spoil = Callable[[Trial], None]
Edit = Callable[[np.ndarray], np.ndarray]


def words(**changes: Any) -> Spoil:
    """Other words of `quantization_config`."""

    def spoil(trial: Trial) -> None:
        trial.config["quantization_config"] = trial.config["quantization_config"] | changes

    return spoil


def weights(**changes: Any) -> Spoil:
    """Other words of the weights of compressed-tensors' one group."""

    def spoil(trial: Trial) -> None:
        trial.config["quantization_config"]["config_groups"]["group_0"]["weights"] |= changes

    return spoil


def edited(end: str, edit: Edit) -> Spoil:
    """Every tensor of an ending, changed."""

    def spoil(trial: Trial) -> None:
        for name in _ending(trial, end):
            trial.change(name, edit)

    return spoil


def without(end: str) -> Spoil:
    def spoil(trial: Trial) -> None:
        for name in _ending(trial, end):
            del trial.tensors[name]

    return spoil


def renamed(old: str, new: str) -> Spoil:
    """Every tensor of an ending, under another name."""

    def spoil(trial: Trial) -> None:
        trial.rename(lambda name: name.removesuffix(old) + new if name.endswith(old) else name)

    return spoil


def exchanged(first: str, second: str) -> Spoil:
    """Two tensors, each in the place of the other."""

    def spoil(trial: Trial) -> None:
        tensors = trial.tensors
        tensors[first], tensors[second] = tensors[second], tensors[first]

    return spoil


def added(tensors: Mapping[str, np.ndarray]) -> Spoil:
    def spoil(trial: Trial) -> None:
        trial.tensors.update(tensors)

    return spoil


def then(*spoils: Spoil) -> Spoil:
    """One after the other."""

    def spoil(trial: Trial) -> None:
        for one in spoils:
            one(trial)

    return spoil


def _ending(trial: Trial, end: str) -> list[str]:
    found = [name for name in trial.tensors if name.endswith(end)]
    assert found, end
    return found


def inverse(scales: np.ndarray) -> np.ndarray:
    """The reciprocals, in the dtype of the scales."""
    return (1 / scales.astype(np.float32)).astype(scales.dtype)


def nibbles(codes: np.ndarray) -> np.ndarray:
    """Words or bytes with the codes of four bits in each in the opposite order."""
    numbers = np.ascontiguousarray(codes).view(np.uint8).reshape(*codes.shape, codes.itemsize)
    turned = np.ascontiguousarray(numbers[..., ::-1])
    return (turned << 4 | turned >> 4).view(codes.dtype).reshape(codes.shape)
