"""Products of experts with the LoRA of each row: x · Aᵀ (shrink), then its product with B (expand).

Rows are in the blocks of `ops.moe_experts`; the rows of one expert may belong to any sequences: B blocks of R rows · K
experts of a token · S slots · e experts · i in · r rank · o out
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bringup.graphs.ops.op import op

if TYPE_CHECKING:
    from torch import Tensor


@op("slot_N[N] row_NK[N K] expert_B[B] -> [B R]")
def slots_to_blocks(slot_N: Tensor, row_NK: Tensor, expert_B: Tensor, rows: int) -> Tensor:
    """The slot of each row's LoRA; -1 for rows without one, and for padding. `rows` is R."""
    import torch

    copies = slot_N[:, None].expand(-1, row_NK.shape[1]).flatten()
    slot_F = torch.full((expert_B.shape[0] * rows,), -1, dtype=torch.int64)
    return slot_F.index_copy(0, row_NK.flatten(), copies).view(-1, rows)


@op("x_BRi[B R i] a_Seri[S e r i] expert_B[B] slot_BR[B R] -> [B R r]")
def expert_lora_shrink(x_BRi: Tensor, a_Seri: Tensor, expert_B: Tensor, slot_BR: Tensor) -> Tensor:
    """x · Aᵀ, with the A of each row's LoRA for its block's expert; 0 for rows whose slot is below 0.

    Blocks of several rows are multiplied with the A of all slots, and the products with other slots are dropped.
    """
    import torch

    if x_BRi.shape[1] == 1:
        a_Bri = a_Seri[slot_BR[:, 0].clamp(min=0), expert_B]
        return torch.where(slot_BR[:, :, None] >= 0, x_BRi @ a_Bri.transpose(1, 2), 0)
    a_BSri = a_Seri[:, expert_B].transpose(0, 1)
    B, S, r = a_BSri.shape[:3]
    h_BRSr = (x_BRi @ a_BSri.flatten(1, 2).transpose(1, 2)).view(B, -1, S, r)
    return torch.where(_own_slot(slot_BR, a_Seri)[..., None], h_BRSr, 0).sum(2)


@op("h_BRr[B R r] b_Sero[S e r o] expert_B[B] slot_BR[B R] -> [B R o]")
def expert_lora_expand(h_BRr: Tensor, b_Sero: Tensor, expert_B: Tensor, slot_BR: Tensor) -> Tensor:
    """h · B, with the B of each row's LoRA for its block's expert; 0 for rows whose slot is below 0."""
    import torch

    if h_BRr.shape[1] == 1:
        h_BRr = torch.where(slot_BR[:, :, None] >= 0, h_BRr, 0)
        return h_BRr @ b_Sero[slot_BR[:, 0].clamp(min=0), expert_B]
    h_BRSr = torch.where(_own_slot(slot_BR, b_Sero)[..., None], h_BRr[:, :, None], 0)
    return h_BRSr.flatten(2) @ b_Sero[:, expert_B].transpose(0, 1).flatten(1, 2)


def _own_slot(slot_BR: Tensor, factors: Tensor) -> Tensor:
    """The mask [B, R, S] of each row's slot."""
    import torch

    return slot_BR[..., None] == torch.arange(factors.shape[0])
