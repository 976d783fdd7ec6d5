"""Recurrent ops, sequence by sequence in steps of several, against torch's convolution and transformers' delta rule."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from transformers.models.qwen3_next.modeling_qwen3_next import torch_recurrent_gated_delta_rule

from bringup.compile.program.step_inputs import Chunk, packed
from bringup.graphs.core.step import Step
from bringup.graphs.ops.activation import softplus
from bringup.graphs.ops.recurrent.causal_conv import causal_conv
from bringup.graphs.ops.recurrent.delta_rule import gated_delta_rule
from bringup.graphs.ops.recurrent.state_space import state_space

ROWS = 4  # of the states; the last is for padding
LENGTHS = (150, 37)  # tokens of each sequence
# The tokens of both sequences in each step, and the number of tokens that it is padded to; 0 of 2 decodes. Then the
# number of those that are no proposals: the next step processes the others again.
STEPS = (
    *(((100, 20), 200, (97, 1)), ((6, 22), 30, (5, 0))),
    *(((47, 33), 80, None), ((0, 1), 1, None), ((0, 1), 5, None), ((1, 1), 0, None)),
)


def steps(order: Sequence[int]) -> list[tuple[Step, dict[int, slice]]]:
    """Each step, with the tokens of each sequence in it; `order` are the sequences' rows of the states."""
    done, found = [0, 0], []
    for counts, size, certain in STEPS:
        chunks, taken = [], {}
        for index, count in enumerate(counts):
            if count:
                stored = certain[index] if certain else None
                chunks.append(Chunk([0] * count, done[index], range(9), order[index], LENGTHS[index], stored))
                taken[index] = slice(done[index], done[index] + count)
                done[index] += count if stored is None else stored
        arrays = packed(chunks, size or 3, 3, 9, ROWS - 1)
        fields = {name: torch.from_numpy(each) for name, each in arrays.items()}
        found.append((Step(**fields, decode=not size, proposals=certain is not None), taken))
    assert tuple(done) == LENGTHS
    return found


def run(
    op: Callable[[Step, list[Tensor]], Tensor], inputs: Sequence[list[Tensor]], order: Sequence[int]
) -> list[Tensor]:
    """The results of each sequence, from steps whose padding has large values. Those of proposals are repeated."""
    results: list[list[tuple[slice, Tensor]]] = [[], []]
    for step, taken in steps(order):
        size = step.tokens.shape[0]
        packed_inputs = []
        for number in range(len(inputs[0])):
            rows = torch.cat([inputs[index][number][part] for index, part in taken.items()])
            padding = rows.new_full((size - rows.shape[0], *rows.shape[1:]), 1e9)
            packed_inputs.append(torch.cat((rows, padding)))
        out, start = op(step, packed_inputs), 0
        for index, part in taken.items():
            results[index].append((part, out[start : start + part.stop - part.start]))
            start += part.stop - part.start
    found = []
    for parts in results:
        whole = torch.cat([rows[: after.start - part.start] for (part, rows), (after, _) in pairwise(parts)])
        found.append(torch.cat((whole, parts[-1][1])))
        for part, rows in parts:
            torch.testing.assert_close(rows, found[-1][part], rtol=1e-5, atol=2e-5)
    return found


@pytest.mark.parametrize("order", [(0, 1), (2, 0)])
@pytest.mark.parametrize(("taps", "bias"), [(3, False), (4, True), (1, True), (70, False)])
def test_convolution(order: tuple[int, int], taps: int, bias: bool) -> None:
    """Also with more taps than a sequence has tokens."""
    torch.manual_seed(taps)
    inputs = [[torch.randn(length, 5)] for length in LENGTHS]
    weight, shift = torch.randn(5, taps), torch.randn(5) if bias else None
    state = torch.full((ROWS, taps - 1, 5), torch.nan)
    found = run(lambda step, given: causal_conv(given[0], weight, state, shift, step), inputs, order)
    for (x,), out, row in zip(inputs, found, order, strict=True):
        wide = F.pad(x.t(), (taps - 1, 0))
        torch.testing.assert_close(out, F.conv1d(wide[None], weight[:, None], shift, groups=5)[0].t())
        torch.testing.assert_close(state[row], wide.t()[wide.shape[1] - taps + 1 :], rtol=0, atol=0)


@pytest.mark.parametrize("order", [(0, 1), (2, 0)])
@pytest.mark.parametrize(("groups", "repeats"), [(2, 3), (3, 1)])
def test_delta_rule(order: tuple[int, int], groups: int, repeats: int) -> None:
    torch.manual_seed(groups)
    heads, k, v = groups * repeats, 8, 5
    inputs = [
        [
            *(torch.randn(n, groups, k), torch.randn(n, groups, k), torch.randn(n, groups, repeats, v)),
            *(-3 * torch.rand(n, heads), torch.rand(n, heads)),
        ]
        for n in LENGTHS
    ]
    state = torch.full((ROWS, heads, k, v), torch.nan)
    found = run(lambda step, given: gated_delta_rule(*given, state, step), inputs, order)
    for (q, keys, values, decay, beta), out, row in zip(inputs, found, order, strict=True):
        each = (x[None] for x in (q, keys, values.flatten(1, 2), decay, beta))
        expected, last = torch_recurrent_gated_delta_rule(*each, output_final_state=True, use_qk_l2norm_in_kernel=True)
        torch.testing.assert_close(out, expected[0], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(state[row], last[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("order", [(0, 1), (2, 0)])
@pytest.mark.parametrize(("groups", "repeats"), [(2, 3), (1, 4)])
def test_state_space(order: tuple[int, int], groups: int, repeats: int) -> None:
    """Against the sum over all earlier tokens, in float64."""
    torch.manual_seed(groups)
    heads, k, v = groups * repeats, 8, 5
    inputs = [
        [
            *(torch.randn(n, groups, k), torch.randn(n, groups, k), torch.randn(n, groups, repeats, v)),
            -3 * torch.rand(n, heads) ** 4,
        ]
        for n in LENGTHS
    ]
    state = torch.full((ROWS, heads, k, v), torch.nan)
    found = run(lambda step, given: state_space(*given, state, step), inputs, order)
    for each, out, row in zip(inputs, found, order, strict=True):
        queries, keys, values, decay = (x.double() for x in each)
        sums = decay.cumsum(0)
        for h in range(heads):
            apart = (sums[:, None, h] - sums[None, :, h]).tril().exp().tril()
            q_NK, k_NK, v_NV = queries[:, h // repeats], keys[:, h // repeats], values.flatten(1, 2)[:, h]
            expected = (apart * (q_NK @ k_NK.t())) @ v_NV
            torch.testing.assert_close(out[:, h].double(), expected, rtol=1e-5, atol=2e-5)
            last = (apart[-1, :, None] * k_NK).t() @ v_NV
            torch.testing.assert_close(state[row, h].double(), last, rtol=1e-5, atol=2e-5)


def test_weak_decays_after_strong_ones() -> None:
    """Sums of thousands have no digits left for the decay between two tokens that follow."""
    n = 64
    decay = torch.full((n, 1), -300.0)
    decay[40:] = -0.01
    q, k, values = torch.randn(n, 1, 8), torch.randn(n, 1, 8), torch.randn(n, 1, 1, 5)
    arrays = packed([Chunk([0] * n, 0, range(9), 0, n)], n, 1, 9, 1)
    step = Step(**{name: torch.from_numpy(each) for name, each in arrays.items()})
    out = state_space(q, k, values, decay, torch.zeros(2, 1, 8, 5), step)
    apart = torch.full((n, n), 0.0, dtype=torch.float64)
    for i in range(n):
        for j in range(i + 1):
            apart[i, j] = decay[j + 1 : i + 1, 0].double().sum().exp()
    expected = (apart * (q[:, 0].double() @ k[:, 0].double().t())) @ values[:, 0, 0].double()
    torch.testing.assert_close(out[:, 0].double(), expected, rtol=2e-6, atol=1e-5)


def test_softplus_is_torchs() -> None:
    x = torch.cat([torch.linspace(-100, 100, 401), torch.tensor([0.0, 1e-9, -1e30, 1e30, torch.inf, -torch.inf])])
    torch.testing.assert_close(softplus(x), F.softplus(x), rtol=1e-6, atol=0)


def test_delta_rule_with_equal_keys() -> None:
    """Equal keys without decay, whose powers of A would overflow a power series of the inverse."""
    n, k = 130, 8
    key = torch.randn(1, 1, k).expand(n, 1, k)
    decay, beta = torch.zeros(n, 1), torch.ones(n, 1)
    values, state = torch.randn(n, 1, 1, 3), torch.zeros(2, 1, k, 3)
    arrays = packed([Chunk([0] * n, 0, range(9), 0, n)], n, 1, 9, 1)
    step = Step(**{name: torch.from_numpy(each) for name, each in arrays.items()})
    out = gated_delta_rule(key, key, values, decay, beta, state, step)
    torch.testing.assert_close(out * k**0.5, values[:, 0], rtol=1e-4, atol=1e-4)
