from __future__ import annotations

from typing import TYPE_CHECKING

from bringup.graphs.ops.op import op

if TYPE_CHECKING:
    from torch import Tensor

    from bringup.graphs.graph import Step

BLOCK = 64  # cache rows that an entry of block_table stands for


@op("q_NHK[N H K] k_SGK[S G K] v_SGK[S G K] -> [N H K]")
def attention(
    q_NHK: Tensor, k_SGK: Tensor, v_SGK: Tensor, step: Step, scale: float, window: int | None = None
) -> Tensor:
    """Causal attention of one step's queries over the cache, H query heads to G key heads (Ainslie et al. 2023).

    A key at cache position j is seen by the query at position p when p - window < j <= p. Scores, softmax and the sum
    over values are float32. One sequence whose cache blocks lie in order: the number of blocks in `block_table` bounds
    the L keys that are read. R = H / G queries share a key head.
    """
    import torch

    G = k_SGK.shape[1]
    L = step.block_table.shape[1] * BLOCK
    q_NGRK = q_NHK.reshape(q_NHK.shape[0], G, -1, q_NHK.shape[2])
    keys = torch.arange(L)[None]
    query = step.positions[:, None]
    seen_NL = keys <= query
    if window is not None:
        seen_NL = seen_NL & (keys > query - window)
    over = _one_query if q_NHK.shape[0] == 1 else _many_queries
    return over(q_NGRK, k_SGK[:L], v_SGK[:L], seen_NL, scale).flatten(1, 2).to(q_NHK.dtype)


def _one_query(q_NGRK: Tensor, k_LGK: Tensor, v_LGK: Tensor, seen_NL: Tensor, scale: float) -> Tensor:
    """As products and sums: a matrix product would have a compiler repack the whole cache for a single row."""
    import torch

    scores_LGR = (k_LGK.float()[:, :, None] * q_NGRK.float()).sum(-1) * scale
    scores_LGR = scores_LGR.masked_fill(~seen_NL[0][:, None, None], float("-inf"))
    weights_LGR = torch.softmax(scores_LGR, dim=0)
    return (weights_LGR[..., None] * v_LGK.float()[:, :, None]).sum(0, keepdim=True)


def _many_queries(q_NGRK: Tensor, k_LGK: Tensor, v_LGK: Tensor, seen_NL: Tensor, scale: float) -> Tensor:
    import torch

    N, G, R, K = q_NGRK.shape
    L = k_LGK.shape[0]
    rows = q_NGRK.permute(1, 2, 0, 3).reshape(G, R * N, K)
    scores_GRNL = torch.bmm(rows, k_LGK.permute(1, 2, 0)).view(G, R, N, L).float() * scale
    weights_GRNL = torch.softmax(scores_GRNL.masked_fill(~seen_NL, float("-inf")), dim=-1)
    mixed = torch.bmm(weights_GRNL.view(G, R * N, L), v_LGK.permute(1, 0, 2).float())
    return mixed.view(G, R, N, K).permute(2, 0, 1, 3)
