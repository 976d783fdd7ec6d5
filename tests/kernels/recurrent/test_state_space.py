"""The state space of Mamba 2 on the emulator, against float64 by numpy: results and states."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernels.graphs import Function
from tests.kernels.recurrent.checks import IN_CHUNKS, STATE, check, operands, parts, wide
from tests.kernels.recurrent.functions import CHUNKS, DECODE, FULL, PROPOSED, RAGGED, Step, state_space

TWO: Step = (((3, 33), (0, 9)), 64, 3)  # sequences of two chunks and of one
NARROW, MIXED, WIDE = ("bfloat16", "bfloat16"), ("bfloat16", "float32"), ("float32", "float32")


def expected(f: Function, step: Step) -> tuple[np.ndarray, np.ndarray]:
    q, k, v = operands(f)
    decay, state = wide(f, "decay"), wide(f, "state")
    out = np.zeros((len(v), decay.shape[1], v.shape[3]))
    for before, new, part, row in parts(step):
        own = state[row].copy() if before else np.zeros_like(state[row])
        for n in range(part.start, part.stop):
            for h in range(decay.shape[1]):
                g, r = divmod(h, v.shape[2])
                own[h] = np.exp(decay[n, h]) * own[h] + np.outer(k[n, g], v[n, g, r])
                out[n, h] = q[n, g] @ own[h]
            if n + 1 == part.start + new:
                state[row] = own
    return out, state


@pytest.mark.parametrize(
    ("step", "heads", "sizes", "dtypes"),
    [
        (DECODE, (1, 3), (24, 20), MIXED),
        (RAGGED, (2, 1), (24, 5), WIDE),
        (TWO, (1, 2), (16, 16), MIXED),
        pytest.param(PROPOSED, (1, 2), (24, 16), MIXED, marks=pytest.mark.slow),
        pytest.param(DECODE, (2, 2), (128, 37), ("float16", "float16"), marks=pytest.mark.slow),
        pytest.param(RAGGED, (1, 3), (7, 3), NARROW, marks=pytest.mark.slow),
        pytest.param(FULL, (1, 1), (256, 20), WIDE, marks=pytest.mark.slow),
        pytest.param(CHUNKS, (2, 1), (128, 37), NARROW, marks=pytest.mark.slow),
        pytest.param(CHUNKS, (1, 2), (256, 16), MIXED, marks=pytest.mark.slow),
        pytest.param(CHUNKS, (1, 33), (24, 20), MIXED, marks=pytest.mark.slow),  # more heads than a tile has
    ],
)
def test_state_space(step: Step, heads: tuple[int, int], sizes: tuple[int, int], dtypes: tuple[str, str]) -> None:
    f = state_space(step, heads, sizes, dtypes, decode=step is DECODE)
    check(f, step, *expected(f, step), dtypes[1], IN_CHUNKS if step in (CHUNKS, TWO) else STATE)
