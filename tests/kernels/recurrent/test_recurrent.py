"""Recurrent kernels on the emulator, against float64 by numpy: results and states, with padding and NaN in memory."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernels.graphs import Function
from tests.kernels.recurrent.checks import IN_CHUNKS, STATE, check, operands, parts, wide
from tests.kernels.recurrent.functions import CHUNKS, DECODE, FULL, PROPOSED, RAGGED, Step, convolution, delta_rule


def expected_convolution(f: Function, step: Step, taps: int) -> tuple[np.ndarray, np.ndarray]:
    weight, state = wide(f, "weight"), wide(f, "state")
    x = wide(f, "x")[:, 3 : 3 + weight.shape[0]]
    out = np.zeros_like(x)
    for before, new, part, row in parts(step):
        first = state[row] if before else np.zeros_like(state[row])
        rows = np.concatenate([first, x[part]])
        windows = np.stack([rows[n : n + taps] for n in range(part.stop - part.start)])
        out[part] = np.einsum("nkc,ck->nc", windows, weight)
        state[row] = rows[new : new + taps - 1]
    return out + (wide(f, "bias") if "bias" in f.arrays else 0), state


@pytest.mark.parametrize(
    ("step", "channels", "taps", "dtype", "bias"),
    [
        (DECODE, 300, 4, "float32", True),
        (DECODE, 37, 3, "bfloat16", False),
        (DECODE, 70, 2, "float16", False),
        (DECODE, 20, 21, "float32", False),  # more taps than the kernel of decode supports
        (RAGGED, 300, 4, "float32", True),
        (RAGGED, 37, 3, "bfloat16", False),
        (RAGGED, 33, 7, "float16", False),
        (RAGGED, 37, 2, "float32", False),
        (FULL, 37, 4, "float32", False),
        pytest.param(PROPOSED, 37, 4, "float32", False, marks=pytest.mark.slow),
    ],
)
def test_convolution(step: Step, channels: int, taps: int, dtype: str, bias: bool) -> None:
    f = convolution(step, channels, taps, dtype, decode=step is DECODE, bias=bias)
    check(f, step, *expected_convolution(f, step, taps), dtype, 0)


def expected_delta_rule(f: Function, step: Step) -> tuple[np.ndarray, np.ndarray]:
    q, k, v = operands(f)
    q, k = (x / np.sqrt((x**2).sum(-1, keepdims=True) + 1e-6) for x in (q, k))
    decay, beta, state = wide(f, "decay"), wide(f, "beta"), wide(f, "state")
    tokens, _, repeats, columns = v.shape
    out = np.zeros((tokens, decay.shape[1], columns))
    for before, new, part, row in parts(step):
        own = state[row].copy() if before else np.zeros_like(state[row])
        for n in range(part.start, part.stop):
            for h in range(decay.shape[1]):
                g, r = divmod(h, repeats)
                own[h] *= np.exp(decay[n, h])
                own[h] += np.outer(k[n, g], beta[n, h] * (v[n, g, r] - k[n, g] @ own[h]))
                out[n, h] = q[n, g] @ own[h] / np.sqrt(q.shape[-1])
            if n + 1 == part.start + new:
                state[row] = own
    return out, state


@pytest.mark.parametrize(
    ("step", "heads", "sizes", "dtype"),
    [
        (DECODE, (2, 2), (128, 128), "bfloat16"),
        (DECODE, (3, 1), (24, 37), "float32"),
        (DECODE, (1, 3), (8, 5), "float16"),
        (RAGGED, (2, 2), (64, 64), "float32"),
        (RAGGED, (1, 3), (24, 37), "bfloat16"),
        (RAGGED, (2, 1), (7, 3), "float16"),
        (PROPOSED, (1, 2), (24, 16), "float32"),
        pytest.param(FULL, (1, 1), (256, 20), "float32", marks=pytest.mark.slow),
        pytest.param(CHUNKS, (1, 2), (24, 20), "bfloat16", marks=pytest.mark.slow),
        pytest.param(CHUNKS, (2, 1), (128, 16), "bfloat16", marks=pytest.mark.slow),
    ],
)
def test_delta_rule(step: Step, heads: tuple[int, int], sizes: tuple[int, int], dtype: str) -> None:
    f = delta_rule(step, heads, sizes, dtype, decode=step is DECODE)
    check(f, step, *expected_delta_rule(f, step), dtype, IN_CHUNKS if step is CHUNKS else STATE)


@pytest.mark.slow
def test_a_chunk_of_equal_keys() -> None:
    """Each token replaces the value of the key. A series for the inverse would have terms of up to 3e8 that cancel."""
    step: Step = (((3, 64),), 64, 1)
    f = delta_rule(step, (1, 2), (24, 16), "bfloat16", decode=False)
    f.arrays["qkv"][..., 24:48] = f.arrays["qkv"][0, :, 24:48]
    f.arrays["decay"][:], f.arrays["beta"][:] = 0, 1
    check(f, step, *expected_delta_rule(f, step), "bfloat16", 2 * IN_CHUNKS)  # nothing decays: more errors add up


def test_softplus_of_small_arguments() -> None:
    """log1p of values from 1e-30 to 1, where 1 + x would be rounded."""
    f = Function()
    x = np.concatenate([np.logspace(-30, 0, 700), -np.logspace(-30, -0.01, 300)]).astype(np.float32)
    given = f.array("x", x, "float32", "value")
    f.node("aten.log1p.default", {"out": (x.shape, "float32")}, self=given)
    found = f.emulated(f.graph("out"), "sm_90").read("out").astype(np.float64)
    assert np.abs(found / np.log1p(x.astype(np.float64)) - 1).max() < 2**-22
