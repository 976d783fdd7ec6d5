# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""The selection of a token's experts by score, which differs between mixtures of experts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bringup.graphs.ops.op import op

if TYPE_CHECKING:
    from torch import Tensor


@op("scores_NE[N E] -> [N E]")
def keep_best_groups(scores_NE: Tensor, groups: int, topk_groups: int, best: int) -> Tensor:
    """Scores of all but the `topk_groups` best groups become -infinity (DeepSeek-V2 §2.1.3: device-limited routing).

    E experts are divided into `groups` of equal size; the score of a group is the sum of its `best` best. Groups are
    selected by index, so exactly `topk_groups` are kept even if scores are equal.
    """
    import torch

    grouped_NGP = scores_NE.unflatten(1, (groups, -1))
    of_group_NG = grouped_NGP.topk(best, dim=-1).values.sum(-1)
    best_NK = of_group_NG.topk(topk_groups, dim=-1).indices
    out_NG = (best_NK[..., None] != torch.arange(groups)).all(1)
    return grouped_NGP.masked_fill(out_NG[..., None], float("-inf")).flatten(1)


@op("scores_NE[N E] ->")
def top_experts(scores_NE: Tensor, count: int, by_NE: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """(selected_NK, weights_NK): the experts with the highest `by_NE`, by default their scores; and their scores."""
    selected_NK = (scores_NE if by_NE is None else by_NE).topk(count, dim=-1).indices
    return selected_NK, scores_NE.gather(1, selected_NK)
