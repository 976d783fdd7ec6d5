"""The next token from logits."""

from __future__ import annotations

import math

import numpy as np

from bringup.diagnostics import fail
from bringup.shown import shown


def check_sampling(temperature: float, top_p: float) -> None:
    """Raises BU019 for what is no temperature or no share of the probability."""
    for name, number in (("temperature", temperature), ("top_p", top_p)):
        if not hasattr(number, "__float__"):  # numpy's numbers have it, a text has not
            raise fail("BU019", f"{name} {shown(number)} is not a number")
    if not 0 <= temperature < math.inf:
        raise fail("BU019", f"temperature {temperature} is not a number from 0 on", help="0 takes the likeliest token")
    if not 0 < top_p <= 1:
        raise fail("BU019", f"top_p {top_p} is not above 0 and at most 1", help="1 keeps every token")


def next_token(logits: np.ndarray, temperature: float, top_p: float, random: np.random.Generator) -> int:
    """Greedy at temperature 0 (lowest index on a tie); else drawn from the softmax, cut to the smallest set of tokens
    whose probabilities reach `top_p` (nucleus sampling, Holtzman et al. 2020). `logits` is [V].

    Raises BU019 for options out of range, BU607 for logits among which none is the largest.
    """
    check_sampling(temperature, top_p)
    largest = logits.max()
    if not np.isfinite(largest):
        said = "NaN" if np.isnan(largest) else "infinity"
        raise fail("BU607", f"the program gave {said} for logits", help="`bringup verify` finds the module it is from")
    if temperature == 0:
        return int(np.argmax(logits))
    with np.errstate(over="ignore"):  # a temperature near 0: all but the largest become -inf
        scaled = (logits.astype(np.float64) - float(largest)) / temperature
    weights = np.exp(scaled)
    weights /= weights.sum()
    order = np.argsort(-weights, kind="stable")
    count = int(np.searchsorted(np.cumsum(weights[order]), top_p)) + 1
    chosen = weights[order[:count]]
    return int(order[random.choice(len(chosen), p=chosen / chosen.sum())])
