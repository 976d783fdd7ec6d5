"""A factor that rounding does not explain: how much too large numbers are along a direction, and how well it is known.

An operation that is wrong by 1 % moves its result by no more than a few roundings. But rounding has either sign, and a
mistake has one: over many numbers rounding averages out. So numbers are regressed on the direction in which the
operation moves them, by least squares; the remainder gives the standard error of the factor that is found.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

# What one rounding to nearest moves a number by on average, as a share of it (as much is `rounding.UNIT`): a constant
# that is rounded, such as a scale of attention, multiplies everything by as much, and no row averages that out.
ROUNDOFF = {"bfloat16": 2.0**-9, "float16": 2.0**-12}
SIGMAS = 4.0  # standard errors beyond that, of many groups
LEAST = 8  # rows; the scatter of fewer is no statistic
NUMBERS = 16  # the same of single numbers, whose errors are less alike than means of rows


@dataclass(frozen=True, slots=True)
class Scale:
    """`factor` less 1 of numbers along a direction, its standard `error`, and what of it rounding explains."""

    factor: float
    error: float
    explained: float

    @property
    def excess(self) -> float:
        """How often the factor contains what it may be: at most 1 agrees."""
        return abs(self.factor) / self.explained


NONE = Scale(0.0, 0.0, 1.0)


def scale_along(gap: np.ndarray, direction: np.ndarray, noise: np.ndarray | None, dtype: str) -> Scale:
    """How much of `direction` [R, …] is in `gap` [R, …], by rows, each of which is one group.

    `noise` [R, …] is a difference that rounding makes of the same numbers: its own factor may come on top, twice.
    `NONE` for too few rows, or where the direction moves nothing.
    """
    rows = len(gap)
    along, square = _dot(gap, direction), _dot(direction, direction)
    used = int((square > 0).sum())
    if rows < LEAST or used < LEAST:
        return NONE
    total = float(square.sum())
    factor = float(along.sum()) / total
    left = along - factor * square
    error = float(np.sqrt((left * left).sum() * used / (used - 1))) / total
    other = 0.0 if noise is None else abs(float(_dot(noise, direction).sum())) / total
    return Scale(factor, error, ROUNDOFF[dtype] + sigmas(used - 1) * error + 2 * other)


def sigmas(degrees: int) -> float:
    """As many standard errors as are exceeded as rarely as `SIGMAS`, where the error has so many degrees of freedom.

    The first terms of Student's quantile (Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.5).
    """
    return SIGMAS + (SIGMAS**3 + SIGMAS) / (4 * degrees)


def scale_of(given: np.ndarray, wanted: np.ndarray, dtype: str) -> Scale:
    """How much larger the finite numbers of an array are than those wanted; each number is a group."""
    ours, right = given.astype(np.float64).ravel(), wanted.astype(np.float64).ravel()
    finite = np.isfinite(ours) & np.isfinite(right)
    ours, right = ours[finite, None], right[finite, None]
    largest = float(np.abs(right).max(initial=0.0))
    if not largest or len(right) < NUMBERS:
        return NONE
    return scale_along((ours - right) / largest, right / largest, None, dtype)


def _dot(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Float64 [R]: the product of each row of one with that of the other."""
    rows = len(one)
    return np.einsum("rn,rn->r", one.reshape(rows, -1).astype(np.float64), other.reshape(rows, -1).astype(np.float64))
