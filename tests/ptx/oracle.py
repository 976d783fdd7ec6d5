"""Exact results, with explicit rounding, independent of numpy's arithmetic."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np

FORMATS = {"f16": (11, -14, 15), "bf16": (8, -126, 127), "f32": (24, -126, 127)}
"""Significant bits, smallest and largest exponent of a normal number."""

_SMALL = [0.0, -0.0, 1e-45, -1e-45, 1e-40, 2.0**-126, -(2.0**-126), 2.0**-60, 0.1]
_ORDINARY = [1.0, -1.0, 1.5, -2.75, math.pi, 1 + 2.0**-23, 1 - 2.0**-24, -448.0, 65520.0, 2.0**24, 2.0**24 + 2]
_LARGE = [3.4028235e38, -3.4028235e38, math.inf, -math.inf, math.nan]
EDGES = np.array([*_ORDINARY, *_SMALL, *_LARGE], np.float32)


def rounded(exact: Fraction, form: str, toward_zero: bool = False) -> float:
    """The nearest number of a format, ties to even; or the next toward zero."""
    digits, low, high = FORMATS[form]
    if exact == 0:
        return 0.0
    size = abs(exact)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    exponent -= size < Fraction(2) ** exponent
    unit = Fraction(2) ** (max(exponent, low) - digits + 1)
    whole, rest = divmod(size, unit)
    if not toward_zero and (rest * 2 > unit or (rest * 2 == unit and whole % 2)):
        whole += 1
    value = whole * unit
    largest = (2 - Fraction(2) ** (1 - digits)) * Fraction(2) ** high
    if value > largest:
        value = largest if toward_zero else None
    return math.copysign(math.inf if value is None else float(value), exact)


def compute(function: Callable[..., object], form: str, *inputs: np.ndarray, toward_zero: bool = False) -> np.ndarray:
    """A function of exact numbers for each element, rounded once. Of zeros, infinities and NaN, float64 is right."""
    results: list[float] = []
    for values in zip(*inputs, strict=True):
        floats = [float(value) for value in values]
        with np.errstate(all="ignore"):
            plain = float(np.float64(function(*(np.float64(value) for value in floats))))
        if all(math.isfinite(value) for value in floats) and math.isfinite(plain):
            exact = function(*(Fraction(value) for value in floats))
            results.append(rounded(Fraction(exact), form, toward_zero) if exact else plain * 0 if plain else plain)
        else:
            results.append(plain)
    return np.array(results, np.float64).astype(np.float32)


def pairs(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Every value with every other."""
    return np.repeat(values, len(values)), np.tile(values, len(values))
