"""Sparse attention: the scores of keys, the selection of keys by score, and its two forms: a mask, or positions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bringup.graphs.ops.attention import of_own_sequence
from bringup.graphs.ops.op import op

if TYPE_CHECKING:
    from torch import Tensor

    from bringup.graphs.core.step import Step


@op("q_NHD[N H D] k_BLD[B L D] weights_NH[N H] -> [N L]")
def index_scores(q_NHD: Tensor, k_BLD: Tensor, weights_NH: Tensor, step: Step) -> Tensor:
    """Σ over the H heads of weight · relu(q · k), in float32 (DeepSeek-V3.2 report, equation 1).

    The keys are those of the query's own sequence, one of B.
    """
    import torch

    N, H, D = q_NHD.shape
    if step.decode:
        of_heads_NHL = torch.bmm(q_NHD.float(), k_BLD.float().transpose(1, 2))
    else:
        rows = q_NHD.reshape(N * H, D).float()
        of_each = [torch.mm(rows, k_BLD[b].float().t()).view(N, H, -1) for b in range(k_BLD.shape[0])]
        of_heads_NHL = of_own_sequence(of_each, step)
    return torch.bmm(weights_NH.float()[:, None], of_heads_NHL.clamp(min=0))[:, 0]


@op("scores_NL[N L] positions_N[N] -> [N L]")
def top_keys(scores_NL: Tensor, positions_N: Tensor, count: int) -> Tensor:
    """True for the `count` highest scores of keys at or before a query's position; for all of them if there are fewer.

    Among keys with equal scores, the earliest are selected. The result is undefined for keys after the position.
    """
    import torch

    N, L = scores_NL.shape
    seen_NL = torch.arange(L)[None] <= positions_N[:, None]
    scores_NL = scores_NL.masked_fill(~seen_NL, float("-inf"))
    enough = torch.cat((scores_NL, torch.full((N, count), float("-inf"))), -1)  # L may be less than `count`
    worst_N1 = enough.topk(count, dim=-1).values[:, -1:]
    above_NL, tied_NL = scores_NL > worst_N1, scores_NL == worst_N1
    room_N1 = count - above_NL.long().sum(-1, keepdim=True)
    return above_NL | (tied_NL & (tied_NL.long().cumsum(-1) <= room_N1))


@op("selected_NL[N L] positions_N[N] -> [N count]")
def selected_positions(selected_NL: Tensor, positions_N: Tensor, count: int) -> Tensor:
    """The positions of the selected keys at or before a query's position, at most `count`: int64, in order.

    The remaining elements of a row are L.
    """
    import torch

    N, L = selected_NL.shape
    at_L = torch.arange(L)
    is_key_NL = selected_NL & (at_L[None] <= positions_N[:, None])
    found = torch.where(is_key_NL, at_L[None], L).float()  # exact up to 2^24 keys; no target sorts integers
    enough = torch.cat((found, (torch.zeros(N, count) + L)), -1)  # L may be less than `count`
    return enough.topk(count, dim=-1, largest=False).values.long()


@op("positions_NK[N K] -> [N L]")
def marked_keys(positions_NK: Tensor, length: int) -> Tensor:
    """True for the keys at these positions, of L = `length`: the mask that `selected_positions` was computed from,
    without keys after a query's position."""
    import torch

    marks = torch.zeros(positions_NK.shape[0], length + 1, dtype=torch.bool)
    return marks.scatter(1, positions_NK, True)[:, :length]
