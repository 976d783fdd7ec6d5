"""The attention op over several sequences, blocks shuffled, against brute force in float64: prefill and decode."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from bringup.compile.program.step_inputs import Chunk, packed
from bringup.graphs.core.step import BLOCK, Step
from bringup.graphs.ops.attention import attention
from tests.graphs.test_attention import OPTIONS, H, brute_force

pytestmark = pytest.mark.usefixtures("implementations")

G, K, BLOCKS = 2, 5, 13
NAMES = ("plain", "window", "window-of-one", "wide-window", "chunks", "sinks", "slopes", "chosen", "wide-values", "all")
# Sequences as (tokens in the cache before, tokens of the step), and the tokens and sequences of the entry.
STEPS: dict[str, tuple[list[tuple[int, int]], int, int]] = {
    "decode": ([(70, 1), (0, 1), (130, 1)], 3, 3),
    "decode-padded": ([(63, 1), (5, 1)], 4, 4),
    "prefill": ([(0, 4), (66, 3), (0, 1)], 8, 3),
    "prefill-padded": ([(60, 9), (2, 2)], 16, 4),
    "prefill-of-one": ([(60, 9)], 16, 1),
}


@pytest.mark.parametrize("kind", STEPS)
@pytest.mark.parametrize("name", NAMES)
def test_each_sequence_equals_brute_force(name: str, kind: str) -> None:
    options, (sequences, size, count) = OPTIONS[name], STEPS[kind]
    random = torch.Generator().manual_seed(7)
    caches = [torch.randn(first + new, G, K, generator=random) for first, new in sequences]
    values = [torch.randn(first + new, G, options.get("value", K), generator=random) for first, new in sequences]
    free = np.random.default_rng(3).permutation(BLOCKS - 1).tolist()
    chunks = [Chunk([0] * new, first, [free.pop() for _ in range(3)], row, first + new)
              for row, (first, new) in enumerate(sequences)]  # fmt: skip
    arrays = packed(chunks, size, count, BLOCKS - 1, len(sequences))
    step = Step(**{key: torch.from_numpy(array) for key, array in arrays.items()}, decode=kind.startswith("decode"))
    k, v = (spread(of, chunks) for of in (caches, values))
    q = torch.randn(size, H, K, generator=random)
    more: dict[str, Tensor] = {}
    if "sinks" in options:
        more["sinks_H"] = options["sinks"] + torch.randn(H, generator=random)
    if "slopes" in options:
        more["slopes_H"] = torch.tensor([2.0**-power for power in range(1, H + 1)])
    if "chosen" in options:
        seen = step.block_table.shape[1] * BLOCK
        more["selected_NL"] = torch.rand(size, seen, generator=random) < 0.4
        more["selected_NL"][torch.arange(size), step.positions] = True  # a query sees its own token
    window, chunk = options.get("window"), options.get("chunk")
    given = attention(q, k, v, step, 0.4, window or chunk, chunked=chunk is not None, **more)
    assert torch.isfinite(given).all()
    start = 0
    for part, keys, rows in zip(chunks, caches, values, strict=True):
        end = start + len(part.tokens)
        own: dict[str, Any] = dict(more)
        if "selected_NL" in own:
            own["selected_NL"] = own["selected_NL"][start:end]
        wanted = brute_force(q[start:end], keys, rows, part.first, 0.4, options, own)
        assert torch.allclose(given[start:end].double(), wanted, atol=2e-5)
        start = end


def spread(of_each: list[Tensor], chunks: list[Chunk]) -> Tensor:
    """A paged cache that holds each sequence's rows in its own blocks; elsewhere is what others left behind."""
    cache = torch.full((BLOCKS * BLOCK, *of_each[0].shape[1:]), 50.0)
    for rows, chunk in zip(of_each, chunks, strict=True):
        positions = torch.arange(len(rows))
        cache[torch.tensor(chunk.blocks)[positions // BLOCK] * BLOCK + positions % BLOCK] = rows
    return cache


def test_a_step_refuses_what_its_entry_has_no_room_for() -> None:
    from bringup.compile.program.program import Entry
    from bringup.compile.program.step_inputs import make_step
    from tests.compile.test_feeds import interface

    whole = interface([16])
    entry = Entry(name="decode", num_tokens=1, num_sequences=1, decode=True, contiguous=True, calls=(), outputs={})
    one = Chunk([3], 0, [0], 0, 1)
    assert make_step([one], entry, whole)["starts"].tolist() == [0, 1]
    for chunks in ([], [one, one], [one._replace(tokens=[1, 2])], [one._replace(tokens=[])]):
        with pytest.raises(ValueError, match="`decode` expects"):
            make_step(chunks, entry, whole)
