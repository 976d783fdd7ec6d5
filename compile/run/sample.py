"""The next token from logits."""

from __future__ import annotations

import numpy as np


def next_token(logits: np.ndarray, temperature: float, top_p: float, random: np.random.Generator) -> int:
    """Greedy at temperature 0 (lowest index on a tie); else drawn from the softmax, cut to the smallest set of tokens
    whose probabilities reach `top_p` (nucleus sampling, Holtzman et al. 2020). `logits` is [V].
    """
    if temperature == 0:
        return int(np.argmax(logits))
    scaled = logits.astype(np.float64) / temperature
    weights = np.exp(scaled - scaled.max())
    weights /= weights.sum()
    order = np.argsort(-weights, kind="stable")
    kept = int(np.searchsorted(np.cumsum(weights[order]), top_p)) + 1
    chosen = weights[order[:kept]]
    return int(order[random.choice(len(chosen), p=chosen / chosen.sum())])
