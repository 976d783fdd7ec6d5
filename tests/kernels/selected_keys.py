"""Masks of selected keys, and the same as positions; what is after a query's position is arbitrary."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

KEYS = 1500


class Selected(NamedTuple):
    """`mask` [N, L] has arbitrary values after `positions` [N]; `keys` [N, count] and `clean` [N, L] have none."""

    mask: np.ndarray
    positions: np.ndarray
    keys: np.ndarray
    clean: np.ndarray


def selected(count: int) -> Selected:
    """Up to `count` keys for each of six queries: none after the position, all, or some of those before it."""
    random = np.random.default_rng(4)
    positions = np.array([0, 4, 1023, 1024, 1499, 700])
    mask, clean = random.random((len(positions), KEYS)) < 0.5, np.zeros((len(positions), KEYS), np.bool_)
    keys = np.full((len(positions), count), KEYS)
    for row, position in enumerate(positions):
        own = np.sort(random.permutation(position + 1)[: count - row])
        mask[row, : position + 1] = clean[row, : position + 1] = False
        mask[row, own] = clean[row, own] = True
        keys[row, : len(own)] = own
    return Selected(mask, positions, keys, clean)
