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
# Only tokens up to the sampled one have to be sorted. They are sought among those whose logits are within 4, 8 and 16
# temperatures of the largest one, and then among all. Tokens with equal logits are on the same side of a bound.
BOUNDS = (-4.0, -8.0, -16.0, -np.inf)


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
    tokens, scaled, weights = _weights(logits, draw)
    total, nucleus, uniform = int(weights.sum()), nucleus_of(draw.top_p), uniform_of(draw.uniform)
    share = share_of(uniform if nucleus == ALL else nucleus, total)
    likely = next(some for bound in BOUNDS if weights[some := scaled > bound].sum() > share)
    tokens, weights = tokens[likely], weights[likely]
    order = _descending(logits[tokens])
    sums = np.cumsum(weights[order])
    if nucleus != ALL:
        total = int(sums[_place(sums, share)])
    return int(tokens[order[_place(sums, share_of(uniform, total))]])


def probabilities_of(logits: np.ndarray, draw: Draw) -> np.ndarray:
    """The probability that `token_of` samples each token, float64 [V]; the temperature is above 0."""
    tokens, _, weights = _weights(logits, draw)
    nucleus = nucleus_of(draw.top_p)
    if nucleus != ALL:
        order = _descending(logits[tokens])
        sums = np.cumsum(weights[order])
        weights[order[_place(sums, share_of(nucleus, int(sums[-1]))) + 1 :]] = 0
    found = np.zeros(len(logits))
    found[tokens] = weights / weights.sum()
    return found


def _weights(logits: np.ndarray, draw: Draw) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The `top_k` most likely tokens, their logits in units of the temperature below the largest, their weights."""
    tokens = _largest(logits, draw.top_k) if 0 < draw.top_k < len(logits) else np.arange(len(logits))
    with np.errstate(over="ignore"):  # a temperature near 0: all but the largest become -inf
        scaled = (logits[tokens].astype(np.float64) - float(logits.max())) / draw.temperature
    return tokens, scaled, (np.exp(scaled) * UNIT).astype(np.int64)


def _descending(logits: np.ndarray) -> np.ndarray:
    """The order of logits, the largest first, equal ones by their place.

    numpy sorts integers with vector instructions, but has none for a stable sort. So the bits of a float32 logit, in
    the order of unsigned integers, and its place are sorted as one integer.
    """
    if logits.dtype != np.float32:
        return np.argsort(-logits, kind="stable")
    bits = (logits + np.float32(0)).view(np.uint32)  # -0 becomes 0
    falling = np.where(bits >> 31, bits, bits ^ np.uint32(0x7FFFFFFF)).astype(np.uint64)
    return np.sort((falling << 32) | np.arange(len(logits), dtype=np.uint64)).astype(np.uint32).astype(np.int64)


def _largest(logits: np.ndarray, count: int) -> np.ndarray:
    """The `count` tokens with the largest logits; of equal ones, those with the lowest numbers."""
    least = np.partition(logits, -count)[-count]
    return np.concatenate([np.flatnonzero(logits > least), np.flatnonzero(logits == least)])[:count]


def _place(sums: np.ndarray, share: int) -> int:
    """The index of the first sum that exceeds a share."""
    return int(np.searchsorted(sums, share, side="right"))
