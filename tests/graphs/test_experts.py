"""Experts in blocks against one token and one expert at a time; experts that nobody chose are not computed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from bringup.graphs.ops.moe_experts import blocks_of, expert_linear, from_blocks, to_blocks

M, F = 5, 7


def ours(x_Nm: Tensor, weight_efm: Tensor, bias_ef: Tensor | None, selected_NK: Tensor, weights_NK: Tensor) -> Tensor:
    blocks = blocks_of(selected_NK, len(weight_efm))
    y_BRf = expert_linear(to_blocks(x_Nm, blocks), weight_efm, bias_ef, blocks.expert_B)
    return from_blocks(y_BRf, weights_NK, blocks)


def brute_force(
    x_Nm: Tensor, weight_efm: Tensor, bias_ef: Tensor | None, selected_NK: Tensor, weights_NK: Tensor
) -> Tensor:
    out = torch.zeros(len(x_Nm), weight_efm.shape[1])
    for n, experts in enumerate(selected_NK.tolist()):
        for k, expert in enumerate(experts):
            product = weight_efm[expert] @ x_Nm[n]
            out[n] += weights_NK[n, k] * (product if bias_ef is None else product + bias_ef[expert])
    return out


def anyhow(n: int, k: int, e: int) -> Tensor:
    """K different experts a token."""
    return torch.stack([torch.randperm(e)[:k] for _ in range(n)])


def one_takes_all(n: int, k: int, e: int) -> Tensor:
    """The last expert gets every row, the others as few as can be."""
    return torch.stack([torch.tensor([e - 1, *range(k - 1)]) for _ in range(n)])


def half_get_none(n: int, k: int, e: int) -> Tensor:
    return anyhow(n, k, max(k, e // 2)) + (e - max(k, e // 2))


SHAPES = [
    (1, 1, 1), (1, 1, 4), (1, 2, 8), (1, 8, 8), (3, 2, 64), (5, 5, 5), (7, 3, 8), (16, 2, 4), (33, 1, 2), (40, 4, 6),
    (64, 2, 3),
]  # fmt: skip


@pytest.mark.parametrize("choice", [anyhow, one_takes_all, half_get_none], ids=lambda choice: choice.__name__)
@pytest.mark.parametrize(("n", "k", "e"), SHAPES)
@pytest.mark.parametrize("bias", [True, False])
def test_blocks_equal_brute_force(bias: bool, n: int, k: int, e: int, choice: Callable[..., Tensor]) -> None:
    torch.manual_seed(n)
    x, weight = torch.randn(n, M), torch.randn(e, F, M)
    chosen, weights = choice(n, k, e), torch.rand(n, k)
    given = (x, weight, torch.randn(e, F) if bias else None, chosen, weights)
    assert torch.allclose(ours(*given), brute_force(*given), atol=1e-5)


@pytest.mark.parametrize("choice", [anyhow, one_takes_all, half_get_none], ids=lambda choice: choice.__name__)
@pytest.mark.parametrize(("n", "k", "e"), SHAPES)
def test_blocks_are_few_and_each_row_has_its_own(n: int, k: int, e: int, choice: Callable[..., Tensor]) -> None:
    """What a program computes is known before it runs: at most twice the rows."""
    chosen = choice(n, k, e)
    blocks = blocks_of(chosen, e)
    rows = blocks.row_NK.flatten()
    assert len(rows.unique()) == n * k
    assert (blocks.expert_B[rows // blocks.rows] == chosen.flatten()).all()
    assert len(blocks.expert_B) * blocks.rows <= 2 * n * k


@pytest.mark.parametrize(("n", "k", "e"), [(1, 2, 8), (1, 1, 3), (2, 2, 64), (3, 3, 16), (10, 1, 12)])
def test_experts_that_nobody_chose_are_not_computed(n: int, k: int, e: int) -> None:
    """Fewer rows than experts, as in decoding: all others' weights are NaN, and the result is that without them."""
    torch.manual_seed(1)
    x, weight, bias, weights = torch.randn(n, M), torch.randn(e, F, M), torch.randn(e, F), torch.rand(n, k)
    chosen = half_get_none(n, k, e)
    wanted = brute_force(x, weight, bias, chosen, weights)
    unused = torch.tensor([expert not in chosen for expert in range(e)])
    assert unused.any()
    weight[unused], bias[unused] = float("nan"), float("nan")
    assert torch.allclose(ours(x, weight, bias, chosen, weights), wanted, atol=1e-5)


@pytest.mark.parametrize(("n", "k", "e"), [(16, 2, 4), (40, 4, 6), (64, 2, 3)])
def test_what_is_in_empty_rows_reaches_nobody(n: int, k: int, e: int) -> None:
    """With more rows than experts, blocks past the last one have some expert, and empty rows have some values."""
    torch.manual_seed(2)
    x, weight, weights = torch.randn(n, M), torch.randn(e, F, M), torch.rand(n, k)
    chosen = half_get_none(n, k, e)
    wanted = brute_force(x, weight, None, chosen, weights)
    for expert in set(range(e)) - set(chosen.flatten().tolist()):
        weight[expert] = float("nan")
    assert torch.allclose(ours(x, weight, None, chosen, weights), wanted, atol=1e-5)


def test_sums_are_float32() -> None:
    """K rows of bfloat16 that cancel: rounded one by one they would be far off."""
    y = torch.tensor([[[256.0]], [[1.0]], [[-256.0]]]).bfloat16()
    blocks = blocks_of(torch.tensor([[0, 1, 2]]), 3)
    sums = from_blocks(y, torch.tensor([[1.0, 1.0, 1.0]]), blocks)
    assert sums.dtype == torch.bfloat16
    assert sums.item() == 1.0
