"""A mixture of experts that computes only selected experts.

The rows of the tokens are sorted into blocks, each of one expert: B blocks of R rows. A few rows are padding.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from bringup.graphs.ops.op import op

if TYPE_CHECKING:
    from torch import Tensor


class Blocks(NamedTuple):
    """expert_B: the expert of each block; row_NK: the row in the blocks of each of a token's K copies; rows: R."""

    expert_B: Tensor
    row_NK: Tensor
    rows: int


def blocks_of(selected_NK: Tensor, experts: int) -> Blocks:
    """Assigns the rows to blocks. R is the average number of rows of an expert; B is at most twice that of experts."""
    N, K = selected_NK.shape
    R = max(1, N * K // experts)
    return Blocks(*rows_of_experts(selected_NK, experts, R), R)


@op("selected_NK[N K] ->")
def rows_of_experts(selected_NK: Tensor, experts: int, R: int) -> tuple[Tensor, Tensor]:
    """(expert_B, row_NK) for blocks of R rows; see `Blocks`."""
    import torch

    N, K = selected_NK.shape
    row_NK = torch.arange(N * K).view(N, K)
    if R == 1:  # a block for each row
        return selected_NK.flatten(), row_NK
    B = (N * K + experts * (R - 1)) // R  # enough even if each expert's last block has a single row
    chosen = selected_NK.flatten()
    own_FE = (chosen[:, None] == torch.arange(experts)).long()
    before_F = (own_FE.cumsum(0) * own_FE).sum(1) - 1  # rows of the same expert before this one
    last_E = ((own_FE.sum(0) + R - 1) // R).cumsum(0)  # the block after an expert's last one
    first_E = torch.cat((torch.zeros(1, dtype=torch.int64), last_E[:-1]))
    expert_B = (torch.arange(B)[:, None] >= last_E).long().sum(1).clamp(max=experts - 1)
    return expert_B, (first_E[chosen] * R + before_F).view(N, K)


@op("x_Nm[N m] ->")
def to_blocks(x_Nm: Tensor, blocks: Blocks) -> Tensor:
    """The rows [B R m] of tokens, one copy for each selected expert; padding rows are 0."""
    import torch

    B, R = blocks.expert_B.shape[0], blocks.rows
    copies = x_Nm[:, None].expand(-1, blocks.row_NK.shape[1], -1).flatten(0, 1)
    if R == 1:
        return copies[:, None]
    rows = torch.zeros(B * R, x_Nm.shape[1], dtype=x_Nm.dtype)
    return rows.index_copy(0, blocks.row_NK.flatten(), copies).view(B, R, -1)


@op("x_BRi[B R i] weight_eoi[e o i] bias_eo[e o] expert_B[B] -> [B R o]")
def expert_linear(x_BRi: Tensor, weight_eoi: Tensor, bias_eo: Tensor | None, expert_B: Tensor) -> Tensor:
    """x · weightᵀ + bias, with the weight of each block's expert."""
    import torch

    out = torch.bmm(x_BRi, weight_eoi[expert_B].transpose(1, 2))
    return out if bias_eo is None else out + bias_eo[expert_B][:, None]


@op("y_BRm[B R m] weights_NK[N K] -> [N m]")
def from_blocks(y_BRm: Tensor, weights_NK: Tensor, blocks: Blocks) -> Tensor:
    """The rows of each token's K experts, weighted and summed in float32."""
    rows_NKm = y_BRm.flatten(0, 1)[blocks.row_NK]
    return (rows_NKm.float() * weights_NK[..., None].float()).sum(1).to(y_BRm.dtype)
