"""Attention over rings against the plain formula: two sequences that outgrow theirs, in packed steps with padding."""

from __future__ import annotations

import pytest
import torch

from bringup.compile.program.step_inputs import Chunk, packed
from bringup.graphs.core.step import CacheSizes, Step
from bringup.graphs.ops.attention import attention
from bringup.graphs.ops.kv_cache import ring_slots, write_cache

pytestmark = pytest.mark.usefixtures("implementations")

WINDOW, G, K, H, SEQUENCES = 11, 2, 5, 6, 3
# (sequence, tokens) of each step: prompts in chunks, packed, decode of both, and a prompt that goes on.
STEPS = [[(0, 32)], [(0, 32)], [(0, 20), (1, 9)], [(0, 1), (1, 1)], [(1, 3), (0, 15)]]


def test_each_query_sees_its_window() -> None:
    ring = CacheSizes(context=256, sequences=SEQUENCES, chunk=40).ring(WINDOW)
    assert ring == 64
    random = torch.Generator().manual_seed(0)
    keys, values = ([torch.randn(count, G, K, generator=random) for count in (100, 13)] for _ in range(2))
    k, v = torch.zeros(4 * ring, G, K), torch.zeros(4 * ring, G, K)
    done, rows = [0, 0], [2, 0]
    for taken in STEPS:
        decode = all(count == 1 for _, count in taken)
        chunks = [Chunk([0] * count, done[i], [0, 1], rows[i], done[i] + count) for i, count in taken]
        arrays = packed(chunks, SEQUENCES if decode else 40, SEQUENCES, 9, SEQUENCES)
        step = Step(**{name: torch.from_numpy(array) for name, array in arrays.items()}, decode=decode)
        size, places = len(step.tokens), [(i, done[i] + at) for i, count in taken for at in range(count)]
        for cache, of_each in ((k, keys), (v, values)):
            new = torch.zeros(size, G, K)
            new[: len(places)] = torch.stack([of_each[i][position] for i, position in places])
            write_cache(cache, ring_slots(cache, step, ring), new)
        q = torch.randn(size, H, K, generator=random)
        given = attention(q, k, v, step, 0.4, WINDOW, ring=ring)
        assert torch.isfinite(given).all()
        for row, (i, position) in enumerate(places):
            seen = slice(max(0, position - WINDOW + 1), position + 1)
            for head in range(H):
                shares = (keys[i][seen, head // 3] @ q[row, head] * 0.4).softmax(0)
                assert torch.allclose(given[row, head], shares @ values[i][seen, head // 3], atol=2e-5)
        for i, count in taken:
            done[i] += count
