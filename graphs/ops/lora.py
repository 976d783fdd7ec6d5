"""Products with the LoRA of each sequence: x · Aᵀ (shrink), then its product with B (expand).

N tokens of the step · B sequences · S slots, each with the A and B of one LoRA · C candidates: the slots that the step
may read · i in · r rank · o out
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

    Where several LoRAs meet several tokens, all tokens are multiplied with all candidates, and what is of other
    sequences is left out: a rank is small, and so one product is cheaper than one for each sequence.
    """
    import torch

    a_Cri = _candidates(a_Sri, slots_B, step)
    if _one_each(a_Sri, step):
        h_Nr = (a_Cri @ x_Ni[:, :, None])[:, :, 0]
        return torch.where(slots_B[:, None] >= 0, h_Nr, 0)
    h_NCr = (x_Ni @ a_Cri.flatten(0, 1).T).view(x_Ni.shape[0], *a_Cri.shape[:2])
    return torch.where(_own(a_Sri, slots_B, step)[:, :, None], h_NCr, 0).sum(1)


@op("h_Nr[N r] b_Sro[S r o] slots_B[B] -> [N o]")
def lora_expand(h_Nr: Tensor, b_Sro: Tensor, slots_B: Tensor, step: Step) -> Tensor:
    """h · B, with the B of each token's sequence; 0 for sequences whose slot is below 0."""
    import torch

    b_Cro = _candidates(b_Sro, slots_B, step)
    if _one_each(b_Sro, step):
        h_Nr = torch.where(slots_B[:, None] >= 0, h_Nr, 0)
        return (h_Nr[:, None] @ b_Cro)[:, 0]
    h_NCr = torch.where(_own(b_Sro, slots_B, step)[:, :, None], h_Nr[:, None], 0)
    return h_NCr.flatten(1) @ b_Cro.flatten(0, 1)


def _all_slots(table_S: Tensor, step: Step) -> bool:
    """Whether the candidates are all slots, which then need not be gathered: no more than there are sequences."""
    return table_S.shape[0] <= step.num_sequences


def _one_each(table_S: Tensor, step: Step) -> bool:
    """Whether token n has candidate n."""
    return step.decode and not _all_slots(table_S, step)


def _candidates(table_S: Tensor, slots_B: Tensor, step: Step) -> Tensor:
    """All slots, or the slot of each sequence; any for one without a LoRA."""
    return table_S if _all_slots(table_S, step) else table_S[slots_B.clamp(min=0)]


def _own(table_S: Tensor, slots_B: Tensor, step: Step) -> Tensor:
    """Whether a candidate is the LoRA of a token, [N, C]."""
    import torch

    slots_N1 = step.per_token(slots_B)[:, None]
    if _all_slots(table_S, step):
        return slots_N1 == torch.arange(table_S.shape[0])
    is_own_NB = step.sequences()[:, None] == torch.arange(step.num_sequences)
    return is_own_NB & (slots_N1 >= 0)
