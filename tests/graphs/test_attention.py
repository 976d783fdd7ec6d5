"""The attention op against brute force, key by key: every option alone and all at once, for one query and for many."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from bringup.compile.program.step_inputs import sequence_step
from bringup.graphs.core.step import BLOCK, Step
from bringup.graphs.ops.attention import attention

pytestmark = pytest.mark.usefixtures("implementations")

ROWS = 3 * BLOCK
H, G, K = 6, 2, 5
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "window": {"window": 3},
    "window-of-one": {"window": 1},
    "wide-window": {"window": 1000},
    "chunks": {"chunk": 3},
    "wide-chunk": {"chunk": 1000},
    "sinks": {"sinks": 1.0},
    "strong-sinks": {"sinks": 40.0},  # past them, exp of a score less their maximum would overflow
    "weak-sinks": {"sinks": -200.0},
    "slopes": {"slopes": True},
    "chosen": {"chosen": True},
    "wide-values": {"value": 11},
    "narrow-values": {"value": 1},
    "all": {"window": 9, "sinks": 1.0, "slopes": True, "chosen": True, "value": 7},
}


def brute_force(
    q: Tensor, k: Tensor, v: Tensor, first: int, scale: float, options: dict[str, Any], more: dict[str, Tensor]
) -> Tensor:
    """One query, head and key at a time, in float64."""
    out = np.zeros((q.shape[0], q.shape[1], v.shape[2]))
    wide_q, wide_k, wide_v = (part.double().numpy() for part in (q, k, v))
    for n in range(q.shape[0]):
        for head in range(q.shape[1]):
            group = head // (q.shape[1] // k.shape[1])
            scores: dict[int, float] = {}
            for j in range(first + n + 1):
                if "window" in options and j <= first + n - options["window"]:
                    continue
                if "chunk" in options and j // options["chunk"] != (first + n) // options["chunk"]:
                    continue
                if "selected_NL" in more and not more["selected_NL"][n, j]:
                    continue
                scores[j] = scale * float(wide_q[n, head] @ wide_k[j, group])
                if "slopes_H" in more:
                    scores[j] -= float(more["slopes_H"][head]) * (first + n - j)
            sink = float(more["sinks_H"][head]) if "sinks_H" in more else -math.inf
            most = max(sink, *scores.values())
            total = math.exp(sink - most) + sum(math.exp(score - most) for score in scores.values())
            for j, score in scores.items():
                out[n, head] += math.exp(score - most) / total * wide_v[j, group]
    return torch.from_numpy(out)


def step_of(count: int, first: int) -> Step:
    """A step of one sequence; decode where it is one token."""
    arrays = sequence_step([0] * count, first, count, ROWS - BLOCK)
    return Step(**{name: torch.from_numpy(array) for name, array in arrays.items()}, decode=count == 1)


@pytest.mark.parametrize("first", [0, BLOCK - 1, 70])
@pytest.mark.parametrize("count", [1, 7])
@pytest.mark.parametrize("name", OPTIONS)
def test_it_equals_brute_force(name: str, count: int, first: int) -> None:
    options, random = OPTIONS[name], torch.Generator().manual_seed(first)
    q = torch.randn(count, H, K, generator=random)
    k = torch.randn(ROWS, G, K, generator=random)
    v = torch.randn(ROWS, G, options.get("value", K), generator=random)
    k[first + count :], v[first + count :] = 50.0, 1e4  # what a longer sequence left behind
    step = step_of(count, first)
    seen = step.block_table.shape[1] * BLOCK
    more: dict[str, Tensor] = {}
    if "sinks" in options:
        more["sinks_H"] = options["sinks"] + torch.randn(H, generator=random)
    if "slopes" in options:
        more["slopes_H"] = torch.tensor([2.0**-power for power in range(1, H + 1)])
    if "chosen" in options:
        more["selected_NL"] = torch.rand(count, seen, generator=random) < 0.4
        for n in range(count):
            more["selected_NL"][n, first + n] = True  # a query sees its own token
    window, chunk = options.get("window"), options.get("chunk")
    result = attention(q, k, v, step, 0.4, window or chunk, chunked=chunk is not None, **more)
    assert result.shape == (count, H, v.shape[2])
    assert torch.allclose(result.double(), brute_force(q, k, v, first, 0.4, options, more), atol=2e-5)


@pytest.mark.parametrize("count", [1, 4])
def test_bfloat16_is_computed_in_float32(count: int) -> None:
    """Rounded once: the result is the float32 one of the same numbers, to the last bit of bfloat16 or the next."""
    random = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(n, h, K, generator=random).bfloat16() for n, h in ((count, H), (ROWS, G), (ROWS, G)))
    step = step_of(count, 60)
    more = {"sinks_H": torch.randn(H, generator=random).bfloat16()}
    result = attention(q, k, v, step, 0.4, **more)
    assert result.dtype == torch.bfloat16
    wanted = brute_force(q, k, v, 60, 0.4, {}, more)
    assert ((result.double() - wanted).abs() <= 2**-8 * wanted.abs() + 0.01).all()
