"""The factors of one LoRA, in the form of slots.

r rank · i in · o out
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from itertools import count
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from bringup.adapters.checkpoints.arrays import bytes_of

if TYPE_CHECKING:
    from bringup.adapters.lora.factors import Lora, LowRank


class LoraFactors(NamedTuple):
    """The LoRA of a parameter's matrix [o, i]: bᵀ · a, for a [r, i] and b [r, o], which includes the scale.

    For experts, [e, o, i], both have a leading axis e.
    """

    a: np.ndarray
    b: np.ndarray

    @property
    def rank(self) -> int:
        """r"""
        return self.a.shape[-2]

    @property
    def shape(self) -> tuple[int, ...]:
        """That of the parameter; () if a and b do not match."""
        alike = self.a.ndim == self.b.ndim >= 2 and self.a.shape[:-1] == self.b.shape[:-1]
        return (*self.a.shape[:-2], self.b.shape[-1], self.a.shape[-1]) if alike else ()


TaskId = int | str  # the name of a LoRA in requests
_numbers = count()


@dataclass(frozen=True, eq=False)
class LoraWeights:
    """The factors of each parameter that a LoRA changes, by the parameter's name in the graph."""

    factors: Mapping[str, LoraFactors]
    number: int = field(default_factory=_numbers.__next__)  # unique in this process

    @property
    def nbytes(self) -> int:
        """Bytes of all factors."""
        return sum(array.nbytes for factors in self.factors.values() for array in factors)

    @cached_property
    def digest(self) -> bytes:
        """Equal for LoRAs with the same effect, and for no others."""
        found = sha256()
        for name, factors in sorted(self.factors.items()):
            for array in factors:
                found.update(f"{name} {array.dtype} {array.shape} ".encode())
                found.update(bytes_of(array).data)
        return found.digest()


def weights_of(lora: Lora, arrays: Mapping[str, np.ndarray]) -> LoraWeights:
    """The factors of a LoRA in the form of slots; `arrays` are those of `Lora.arrays`.

    Several factors of one parameter, whose products are summed, become one of a larger rank.
    """
    return LoraWeights({name: _joined(parts, arrays) for name, parts in lora.sites.items()})


def _joined(parts: tuple[LowRank, ...], arrays: Mapping[str, np.ndarray]) -> LoraFactors:
    return LoraFactors(
        np.concatenate([arrays[part.a] for part in parts], axis=-2),
        np.concatenate([_scaled(arrays[part.b], part.scale).swapaxes(-1, -2) for part in parts], axis=-2),
    )


def _scaled(b: np.ndarray, scale: float) -> np.ndarray:
    """b · scale in float32, rounded once."""
    return b if scale == 1 else (b.astype(np.float32) * np.float32(scale)).astype(b.dtype)
