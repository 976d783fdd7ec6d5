"""Ops: wrong shapes are told by name; references equal brute force."""

from __future__ import annotations

import math

import pytest
import torch

from bringup.diagnostics import BringupError
from bringup.graphs.graph import Step
from bringup.graphs.ops.attention import BLOCK, attention
from bringup.graphs.ops.linear import linear
from bringup.graphs.ops.norm import layer_norm, rms_norm


def test_wrong_shape_is_told_by_argument_and_axis():
    with pytest.raises(BringupError, match=r"BU301.*op `linear`: `weight`.*axis `in`"):
        linear(torch.zeros(2, 3), torch.zeros(5, 4))
    with pytest.raises(BringupError, match=r"BU301.*2 dimensions"):
        linear(torch.zeros(2, 3), torch.zeros(3))


def test_norms_equal_torch():
    x, w, b = torch.randn(4, 6), torch.randn(6), torch.randn(6)
    assert torch.allclose(layer_norm(x, w, b, 1e-5), torch.nn.functional.layer_norm(x, (6,), w, b, 1e-5), atol=1e-6)
    assert torch.allclose(rms_norm(x, w, 1e-5), torch.nn.functional.rms_norm(x, (6,), w, 1e-5), atol=1e-6)


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("first", [0, 70])
@pytest.mark.parametrize("count", [1, 5])
def test_attention_equals_brute_force(window, first, count):
    heads, groups, size, scale = 4, 2, 6, 0.3
    k, v = torch.randn(3 * BLOCK, groups, size), torch.randn(3 * BLOCK, groups, size)
    q = torch.randn(count, heads, size)
    positions = torch.arange(first, first + count)
    blocks = -(-(first + count) // BLOCK)
    step = Step(positions, positions, positions, torch.zeros(1, blocks), torch.tensor([first + count]))
    made = attention(q, k, v, step, scale, window)
    for n in range(count):
        p = first + n
        seen = range(0 if window is None else max(0, p - window + 1), p + 1)
        for head in range(heads):
            g = head // (heads // groups)
            weights = [math.exp(scale * float(q[n, head] @ k[j, g])) for j in seen]
            mixed = sum(w * v[j, g] for w, j in zip(weights, seen, strict=True)) / sum(weights)
            assert torch.allclose(made[n, head], mixed, atol=1e-5)
