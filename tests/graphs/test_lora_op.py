"""`lora_shrink` and `lora_expand` against one product for each token, in numpy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from bringup.compile.program.step_inputs import Chunk, packed
from bringup.graphs.core.step import FIELDS, Step
from bringup.graphs.layers.linear import Linear
from bringup.graphs.layers.lora import LoraSlots
from bringup.graphs.ops.lora import lora_expand, lora_shrink

NEAR = 1e-5  # float32, sums of 20 products of order 1 in another order
RANK, IN, OUT = 3, 20, 12


def step_of(lengths: list[int], tokens: int, sequences: int, *, decode: bool) -> Step:
    """A step of sequences with so many new tokens each, padded."""
    chunks = [Chunk([1] * count, 4, [2 * row, 2 * row + 1], row, 4 + count) for row, count in enumerate(lengths)]
    arrays = packed(chunks, tokens, sequences, 40, sequences)
    return Step(*(torch.from_numpy(arrays[name]) for name in FIELDS), decode=decode)


@pytest.mark.parametrize("slots", [2, 4, 9])
@pytest.mark.parametrize(
    ("lengths", "tokens", "decode"),
    [([1, 1, 1, 1], 4, True), ([1, 1], 4, True), ([5, 1, 3], 12, False), ([7], 8, False), ([1], 1, True)],
)
def test_each_token_has_the_lora_of_its_sequence(slots, lengths, tokens, decode):
    draw = np.random.default_rng(slots)
    sequences = 1 if len(lengths) == 1 else 4
    step = step_of(lengths, tokens, sequences, decode=decode)
    a, b = draw.standard_normal((slots, RANK, IN)), draw.standard_normal((slots, RANK, OUT))
    x = draw.standard_normal((tokens, IN))
    for chosen in ([0, slots - 1, -1, 1], [-1, -1, -1, -1], [1, 1, 0, 1], [-1, 0, slots - 1, 0]):
        slots_B = [*chosen[: len(lengths)], *[-1] * (sequences - len(lengths))]
        given = [torch.from_numpy(array) for array in (x, a, b, np.array(slots_B))]
        h = lora_shrink(given[0], given[1], given[3], step)
        y = lora_expand(h, given[2], given[3], step)
        of_token = [slot for slot, count in zip(slots_B, lengths, strict=False) for _ in range(count)]
        for n, slot in enumerate(of_token):
            wanted = b[slot].T @ (a[slot] @ x[n]) if slot >= 0 else np.zeros(OUT)
            assert np.abs(y[n].numpy() - wanted).max() < NEAR, (n, slot)
        assert torch.isfinite(y).all()


def test_a_slot_of_infinity_is_read_by_nobody_else():
    """What another sequence's LoRA overflows to is left out, not multiplied by 0."""
    step = step_of([1, 1], 2, 2, decode=True)
    a = torch.full((2, RANK, IN), 1e30)
    a[0] = 1.0
    x, b = torch.full((2, IN), 1e30), torch.ones(2, RANK, OUT)
    x[0] = 1.0
    y = lora_expand(lora_shrink(x, a, torch.tensor([0, 1]), step), b, torch.tensor([0, 1]), step)
    assert torch.equal(y[0], torch.full((OUT,), float(RANK * IN)))
    assert torch.isinf(y[1]).all()


def test_a_linear_layer_has_room_where_it_is_given_some():
    plain = Linear("out:(h d) in:m", h=2, d=3, m=5)
    assert plain.weight_lora is None
    before = plain.structural_key()
    plain.add_lora(4, 2)
    assert isinstance(plain.weight_lora, LoraSlots)
    assert [axis.size for axis in plain.weight_lora.a.axes] == [4, 2, 5]
    assert [axis.size for axis in plain.weight_lora.b.axes] == [4, 2, 6]
    assert plain.structural_key() != before
