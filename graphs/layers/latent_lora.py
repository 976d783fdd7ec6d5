"""LoRAs of the matrices that latent attention makes keys and values with, and that its op multiplies by inside.

A is the same for all heads. So what a LoRA adds to keys and values is a product of the latent with further rows of the
two matrices, the A of every sequence; B is multiplied with the queries before, with the result after.

N tokens · B sequences · H heads · c channels of the latent · n of a key, v of a value · r rank · R = B r
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from bringup.graphs.ops.moe_experts import expert_linear

if TYPE_CHECKING:
    from torch import Tensor


class Unfolded(NamedTuple):
    """The factors of each sequence's LoRA, A [B, r, i] and B [B, r, o], and which of them are a token's, [N, B]."""

    a: Tensor
    b: Tensor
    own: Tensor


def wider_queries(q_NHn: Tensor, lora: Unfolded) -> Tensor:
    """Queries [N, H, n + R] for keys of `with_rows`: q · (W + B A) latent = q · W latent + (q · B) · A latent."""
    import torch

    H, n = q_NHn.shape[1:]
    b_HRn = lora.b.flatten(0, 1).view(-1, H, n).transpose(0, 1)
    return torch.cat((q_NHn, _own(_by_head(q_NHn, b_HRn), lora)), -1)


def with_rows(matrix_xc: Tensor, heads: int, lora: Unfolded) -> Tensor:
    """[(H (n + R)), c] of a matrix [(H n), c]: behind the rows of each head those of every sequence's A."""
    import torch

    a_HRc = lora.a.flatten(0, 1)[None].expand(heads, -1, -1)
    return torch.cat((matrix_xc.view(heads, -1, matrix_xc.shape[1]), a_HRc), 1).flatten(0, 1)


def narrower_results(y_NHx: Tensor, lora: Unfolded) -> Tensor:
    """Results [N, H, v] of those [N, H, v + R] that values of `with_rows` give."""
    import torch

    H, R = y_NHx.shape[1], lora.a.shape[0] * lora.a.shape[1]
    v = y_NHx.shape[2] - R
    b_HvR = lora.b.flatten(0, 1).view(R, H, v).permute(1, 2, 0).clone(memory_format=torch.contiguous_format)
    return y_NHx[..., :v] + _by_head(_own(y_NHx[..., v:], lora), b_HvR)


def _by_head(x_NHi: Tensor, weight_Hoi: Tensor) -> Tensor:
    """Each head's rows by the head's matrix: a product of experts, all of which have as many rows."""
    import torch

    x_HNi = x_NHi.transpose(0, 1).clone(memory_format=torch.contiguous_format)
    return expert_linear(x_HNi, weight_Hoi, None, torch.arange(x_HNi.shape[0])).transpose(0, 1)


def _own(h_NHR: Tensor, lora: Unfolded) -> Tensor:
    """Zeros in the channels of other sequences' ranks."""
    import torch

    h_NHBr = h_NHR.reshape(*h_NHR.shape[:2], *lora.a.shape[:2])
    return torch.where(lora.own[:, None, :, None], h_NHBr, 0).flatten(2)
