"""The factor by which an operation is wrong on average: a least-squares coefficient and its standard error.

An operation that is wrong by 1 % changes its result by no more than a few roundings. But rounding errors have either
sign and average out over many values, and a mistake has one sign. So errors are regressed on the direction in which the
operation moves the values; the residual gives the standard error of the factor.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

# The relative error of one rounding to nearest, on average (the same value as `rounding.UNIT`). A rounded constant,
# such as the scale of attention, multiplies everything by this factor, and no row averages it out.
ROUNDOFF = {"bfloat16": 2.0**-9, "float16": 2.0**-12}
SIGMAS = 4.0  # standard errors beyond that, for many groups
LEAST = 8  # rows; the scatter of fewer is not reliable
NUMBERS = 16  # the same for single values, whose errors vary more than means of rows


@dataclass(frozen=True, slots=True)
class Scale:
    """A relative `factor` along a direction (0 for none), its standard `error`, and its bound `explained`."""

    factor: float
    error: float
    explained: float

    @property
    def excess(self) -> float:
        """The factor divided by its bound: at most 1 agrees."""
        return abs(self.factor) / self.explained


NONE = Scale(0.0, 0.0, 1.0)


def scale_along(gap: np.ndarray, direction: np.ndarray, noise: np.ndarray | None, dtype: str) -> Scale:
    """The coefficient of `gap` [R, …] on `direction` [R, …]; each row is one group.

    `noise` [R, …] is a difference due to rounding of the same values: twice its own coefficient is added to the bound.
    `NONE` for too few rows, or if the direction is zero. The standard error is that of White (Econometrica 48, 1980).
    """
    if len(gap) < LEAST:
        return NONE
    along, square = _dot(gap, direction), _dot(direction, direction)
    used = int((square > 0).sum())
    if used < LEAST:
        return NONE
    total = float(square.sum())
    factor = float(along.sum()) / total
    left = along - factor * square
    error = float(np.sqrt((left * left).sum() * used / (used - 1))) / total
    other = 0.0 if noise is None else abs(float(_dot(noise, direction).sum())) / total
    return Scale(factor, error, ROUNDOFF[dtype] + sigmas(used - 1) * error + 2 * other)


def sigmas(degrees: int) -> float:
    """The number of standard errors that is exceeded as rarely as `SIGMAS`, for an error with `degrees` of freedom.

    The first terms of Student's quantile (Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.5).
    """
    return SIGMAS + (SIGMAS**3 + SIGMAS) / (4 * degrees)


def scale_of(given: np.ndarray, wanted: np.ndarray, dtype: str) -> Scale:
    """The factor by which the finite values of `given` differ from `wanted` on average; each value is a group."""
    ours, right = given.astype(np.float64).ravel(), wanted.astype(np.float64).ravel()
    finite = np.isfinite(ours) & np.isfinite(right)
    ours, right = ours[finite, None], right[finite, None]
    largest = float(np.abs(right).max(initial=0.0))
    if not largest or len(right) < NUMBERS:
        return NONE
    return scale_along((ours - right) / largest, right / largest, None, dtype)


def _dot(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Float64 [R]: the dot product of each pair of rows."""
    rows = len(one)
    return np.einsum("rn,rn->r", one.reshape(rows, -1).astype(np.float64), other.reshape(rows, -1).astype(np.float64))
