"""Integers packed in words without gaps, some across two words: a value node, because a movement cannot split one."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bringup.adapters.algebra.computed import Computed
from bringup.adapters.algebra.expr import Expr, Unary
from bringup.adapters.algebra.region import Region
from bringup.adapters.algebra.scope import Scope
from bringup.graphs.core.axes import AxesError, Axis, shape_of, show

if TYPE_CHECKING:
    import numpy as np

WORD = 32  # bits


@dataclass(frozen=True)
class BitFields(Unary):
    """The integers of `width` bits along dimension `axis` of int32 words, low bits first; `plus` is added to each.

    Integers are modulo 2^width. Up to four bits they are uint4, otherwise uint8. Raises AxesError if the last integer
    of the dimension is incomplete, or if there is no such dimension.
    """

    of: Expr
    width: int
    axis: int
    plus: int = 0

    def region(self, scope: Scope) -> Region:
        words = self.of.region(scope)
        scope.check_dtypes(words, frozenset({"int32"}), f"numbers of {self.width} bits")
        if self.axis >= len(words.shape):
            raise AxesError(f"`{show(words.axes)}` has no dimension {self.axis} for words of {self.width} bits")
        size, cycle = words.shape[self.axis], _cycle(self.width)
        if size % cycle[1] and not scope.misfits:
            raise AxesError(f"{size} words along `{show(words.axes)}` do not end with a number of {self.width} bits")
        axes = list(words.axes)
        axes[self.axis] = Axis(axes[self.axis].name, size * WORD // self.width)
        fields = Fields(self.width, self.axis, self.plus)
        grains = tuple(cycle if k == self.axis else (1, 1) for k in range(len(words.shape)))
        computed = Computed(
            f"numbers of {self.width} bits", (words,), shape_of(tuple(axes)), fields.dtype, fields, exact=True,
            inverse=Words(self.width, self.axis, self.plus), grains=(grains,),
        )  # fmt: skip
        return scope.whole(computed, tuple(axes))


@dataclass(frozen=True, slots=True)
class Fields:
    """The integers in words; see `BitFields`."""

    bits: int
    axis: int
    plus: int

    @property
    def dtype(self) -> str:
        """The dtype of one integer."""
        return "uint4" if self.bits <= 4 else "uint8"

    def __call__(self, words: np.ndarray) -> np.ndarray:
        import numpy as np

        from bringup.adapters.checkpoints.arrays import numpy_dtype

        last = np.moveaxis(words.view(np.uint32), self.axis, -1)
        numbers = np.empty((*last.shape[:-1], last.shape[-1] * WORD // self.bits), np.uint8)
        for number, word, shift in _places(self.bits):
            every, taken = slice(number, None, _cycle(self.bits)[0]), slice(word, None, _cycle(self.bits)[1])
            found = last[..., taken] >> np.uint32(shift)
            if shift + self.bits > WORD:
                found |= last[..., word + 1 :: _cycle(self.bits)[1]] << np.uint32(WORD - shift)
            numbers[..., every] = (found + np.uint32(self.plus)) & np.uint32((1 << self.bits) - 1)
        return np.ascontiguousarray(np.moveaxis(numbers, -1, self.axis)).astype(numpy_dtype(self.dtype))


@dataclass(frozen=True, slots=True)
class Words:
    """The words for integers: the inverse of `Fields`."""

    bits: int
    axis: int
    plus: int

    def __call__(self, numbers: np.ndarray) -> tuple[np.ndarray]:
        import numpy as np

        last = np.moveaxis(numbers, self.axis, -1).astype(np.uint32) - np.uint32(self.plus)
        last &= np.uint32((1 << self.bits) - 1)
        words = np.zeros((*last.shape[:-1], last.shape[-1] * self.bits // WORD), np.uint32)
        for number, word, shift in _places(self.bits):
            every, taken = slice(number, None, _cycle(self.bits)[0]), slice(word, None, _cycle(self.bits)[1])
            words[..., taken] |= last[..., every] << np.uint32(shift)
            if shift + self.bits > WORD:
                words[..., word + 1 :: _cycle(self.bits)[1]] |= last[..., every] >> np.uint32(WORD - shift)
        return (np.ascontiguousarray(np.moveaxis(words.view(np.int32), -1, self.axis)),)


def _cycle(bits: int) -> tuple[int, int]:
    """The smallest count of integers that fills complete words, and the count of words."""
    common = math.gcd(bits, WORD)
    return WORD // common, bits // common


def _places(bits: int) -> Iterator[tuple[int, int, int]]:
    """The position of each integer of a cycle: the integer, its word and the bit in it."""
    return ((number, *divmod(number * bits, WORD)) for number in range(_cycle(bits)[0]))
