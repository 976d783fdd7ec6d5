"""The rope op: channels turn in pairs, as complex numbers do; those past the part that turns stay."""

from __future__ import annotations

import pytest
import torch
from transformers.models.glm.modeling_glm import apply_rotary_pos_emb as interleaved_theirs
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb as halves_theirs

from bringup.graphs.ops.rotary import rope

N, H = 6, 3


def angles(pairs: int) -> torch.Tensor:
    return torch.randn(N, pairs, generator=torch.Generator().manual_seed(pairs)) * 3


@pytest.mark.parametrize(("size", "pairs"), [(8, 4), (8, 2), (10, 1), (7, 3), (2, 1)])
@pytest.mark.parametrize("interleaved", [False, True])
def test_pairs_turn_as_complex_numbers(interleaved: bool, size: int, pairs: int) -> None:
    x, angle = torch.randn(N, H, size), angles(pairs)
    rotated = rope(x, angle.cos(), angle.sin(), interleaved=interleaved)
    for i in range(pairs):
        a, b = (2 * i, 2 * i + 1) if interleaved else (i, i + pairs)
        expected = torch.complex(x[..., a], x[..., b]) * torch.polar(torch.ones(N, 1), angle[:, i : i + 1])
        assert torch.allclose(rotated[..., a], expected.real, atol=1e-5)
        assert torch.allclose(rotated[..., b], expected.imag, atol=1e-5)
    assert torch.equal(rotated[..., 2 * pairs :], x[..., 2 * pairs :])


@pytest.mark.parametrize(("size", "pairs"), [(8, 4), (12, 3)])
@pytest.mark.parametrize("interleaved", [False, True])
def test_it_is_what_transformers_does(interleaved: bool, size: int, pairs: int) -> None:
    """Llama pairs the halves of all channels, GLM neighbours of some of them."""
    if not interleaved:
        size = 2 * pairs
    x, angle = torch.randn(N, H, size), angles(pairs)
    whole = torch.cat((angle, angle), dim=1)[None]
    theirs = interleaved_theirs if interleaved else halves_theirs
    wanted, _ = theirs(x[None].transpose(1, 2), x[None].transpose(1, 2), whole.cos(), whole.sin())
    rotated = rope(x, angle.cos(), angle.sin(), interleaved=interleaved)
    assert torch.allclose(rotated, wanted[0].transpose(0, 1), atol=1e-6)


def test_bfloat16_is_rotated_in_float32() -> None:
    x, angle = torch.randn(N, H, 8).bfloat16(), angles(3)
    rotated = rope(x, angle.cos(), angle.sin())
    assert rotated.dtype == torch.bfloat16
    assert torch.equal(rotated, rope(x.float(), angle.cos(), angle.sin()).bfloat16())
