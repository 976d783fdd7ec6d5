"""Probabilities as integers, so that host and device sample the same tokens from equal logits.

The weight of a token is floor(2^40 · p / p_max), where p_max is the probability of the most likely token. Sums of
weights are exact, whatever their order. A share is floor(fraction · sum), with the fraction in units of 2^-64.
"""

from __future__ import annotations

import numpy as np

from bringup.compile.program.program import Draw

UNIT = 1 << 40  # the weight of the most likely token
WHOLE = 1 << 64  # the units of a fraction of 1
ALL = WHOLE - 1  # the nucleus of all tokens
# 2^-53: the float64 of a decimal under 1 exceeds it by at most 2^-54. Without this, top_p = 0.2 would select two of
# five equal tokens.
ROUNDING = 1 << 11


def nucleus_of(top_p: float) -> int:
    """The fraction that the sum up to the last token of the nucleus exceeds; `ALL` for top_p = 1."""
    return ALL if top_p == 1 else max(int(top_p * WHOLE) - ROUNDING, 0)


def uniform_of(uniform: float) -> int:
    """The fraction that the sum up to the sampled token exceeds, from a number in [0, 1)."""
    return int(uniform * WHOLE)


def share_of(fraction: int, total: int) -> int:
    """floor(fraction · total)."""
    return fraction * total >> 64


def token_of(logits: np.ndarray, draw: Draw) -> int:
    """The token that a draw samples from logits [V], whose maximum is finite; see `runtime.sampling.next_token`."""
    if not draw.temperature:
        return int(np.argmax(logits))
    with np.errstate(over="ignore"):  # a temperature near 0: all but the largest become -inf
        scaled = (logits.astype(np.float64) - float(logits.max())) / draw.temperature
    order = np.argsort(-logits, kind="stable")[: draw.top_k or None]
    sums = np.cumsum((np.exp(scaled[order]) * UNIT).astype(np.int64))
    total, nucleus = int(sums[-1]), nucleus_of(draw.top_p)
    if nucleus != ALL:
        total = int(sums[_place(sums, share_of(nucleus, total))])
    return int(order[_place(sums, share_of(uniform_of(draw.uniform), total))])


def _place(sums: np.ndarray, share: int) -> int:
    """The index of the first sum that exceeds a share."""
    return int(np.searchsorted(sums, share, side="right"))
