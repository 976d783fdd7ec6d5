"""LoRAs of MLA's matrices for keys and values, which its op multiplies with internally.

A is the same for all heads. So a LoRA adds to keys and values a product of the latent with additional rows of the two
matrices, which hold the A of every sequence. B is multiplied with the queries before the op, or with its result.

N tokens · B sequences · H heads · c channels of the latent · n of a key, v of a value · r rank · R = B r
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from bringup.graphs.ops.moe_experts import expert_linear

if TYPE_CHECKING:
    from torch import Tensor


class Unfolded(NamedTuple):
    """The factors of each sequence's LoRA, A [B, r, i] and B [B, r, o], and the mask [N, B] of a token's sequence."""

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
    """[(H (n + R)), c] for a matrix [(H n), c]: the rows of each head are followed by the A of every sequence."""
    import torch

    a_HRc = lora.a.flatten(0, 1)[None].expand(heads, -1, -1)
    return torch.cat((matrix_xc.view(heads, -1, matrix_xc.shape[1]), a_HRc), 1).flatten(0, 1)


def narrower_results(y_NHx: Tensor, lora: Unfolded) -> Tensor:
    """Results [N, H, v] from those [N, H, v + R] for the values of `with_rows`."""
    import torch

    H, R = y_NHx.shape[1], lora.a.shape[0] * lora.a.shape[1]
    v = y_NHx.shape[2] - R
    b_HvR = lora.b.flatten(0, 1).view(R, H, v).permute(1, 2, 0).clone(memory_format=torch.contiguous_format)
    return y_NHx[..., :v] + _by_head(_own(y_NHx[..., v:], lora), b_HvR)


def _by_head(x_NHi: Tensor, weight_Hoi: Tensor) -> Tensor:
    """Multiplies each head's rows by the head's matrix: a product of experts with equal numbers of rows."""
    import torch

    x_HNi = x_NHi.transpose(0, 1).clone(memory_format=torch.contiguous_format)
    return expert_linear(x_HNi, weight_Hoi, None, torch.arange(x_HNi.shape[0])).transpose(0, 1)


def _own(h_NHR: Tensor, lora: Unfolded) -> Tensor:
    """Sets the channels of other sequences' ranks to 0."""
    import torch

    h_NHBr = h_NHR.reshape(*h_NHR.shape[:2], *lora.a.shape[:2])
    return torch.where(lora.own[:, None, :, None], h_NHBr, 0).flatten(2)
