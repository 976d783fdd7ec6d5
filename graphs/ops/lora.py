"""Products with the LoRA of each sequence: x · Aᵀ (shrink), then its product with B (expand).

N tokens of the step · B sequences · S slots, each with the A and B of one LoRA · i in · r rank · o out
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bringup.graphs.ops.op import op

if TYPE_CHECKING:
    from torch import Tensor

    from bringup.graphs.core.step import Step


@op("x_Ni[N i] a_Sri[S r i] slots_B[B] -> [N r]")
def lora_shrink(x_Ni: Tensor, a_Sri: Tensor, slots_B: Tensor, step: Step) -> Tensor:
    """x · Aᵀ, with the A of each token's sequence; 0 for sequences whose slot is below 0, which have no LoRA.

    With several prompts, all tokens are multiplied with the A of all sequences, and the products with other sequences
    are dropped: ranks are small, so one product is cheaper than one for each sequence.
    """
    import torch

    a_Bri = a_Sri[slots_B.clamp(min=0)]
    if step.decode:
        h_Nr = (a_Bri @ x_Ni[:, :, None])[:, :, 0]
        return torch.where(slots_B[:, None] >= 0, h_Nr, 0)
    h_NBr = (x_Ni @ a_Bri.flatten(0, 1).T).view(x_Ni.shape[0], *a_Bri.shape[:2])
    return torch.where(own_sequence(slots_B, step)[:, :, None], h_NBr, 0).sum(1)


@op("h_Nr[N r] b_Sro[S r o] slots_B[B] -> [N o]")
def lora_expand(h_Nr: Tensor, b_Sro: Tensor, slots_B: Tensor, step: Step) -> Tensor:
    """h · B, with the B of each token's sequence; 0 for sequences whose slot is below 0."""
    import torch

    b_Bro = b_Sro[slots_B.clamp(min=0)]
    if step.decode:
        h_Nr = torch.where(slots_B[:, None] >= 0, h_Nr, 0)
        return (h_Nr[:, None] @ b_Bro)[:, 0]
    h_NBr = torch.where(own_sequence(slots_B, step)[:, :, None], h_Nr[:, None], 0)
    return h_NBr.flatten(1) @ b_Bro.flatten(0, 1)


@op("rows_N[N] a_Srv[S r v] slots_B[B] -> [N r]")
def lora_lookup(rows_N: Tensor, a_Srv: Tensor, slots_B: Tensor, step: Step) -> Tensor:
    """`lora_shrink` of the rows `rows_N` of a unit matrix [v, v]: columns of A, [N, r]."""
    import torch

    slot_N = step.per_token(slots_B)
    return torch.where(slot_N[:, None] >= 0, a_Srv[slot_N.clamp(min=0), :, rows_N], 0)


def own_sequence(slots_B: Tensor, step: Step) -> Tensor:
    """The mask [N, B] of each token's sequence, if that has a LoRA; padding has none."""
    import torch

    own_NB = step.sequences()[:, None] == torch.arange(step.num_sequences)
    return torch.bitwise_and(own_NB, slots_B[None] >= 0)
