from __future__ import annotations

from typing import TYPE_CHECKING

from bringup.graphs.ops.op import op

if TYPE_CHECKING:
    from torch import Tensor

    from bringup.graphs.graph import Step

BLOCK = 64  # cache rows a block_table entry stands for


@op("q_NHK[N H K] k_SGK[S G K] v_SGK[S G K] -> [N H K]")
def attention(
    q_NHK: Tensor, k_SGK: Tensor, v_SGK: Tensor, step: Step, scale: float, window: int | None = None
) -> Tensor:
    """Causal attention of one step's queries over the cache, H query heads to G key heads (Ainslie et al. 2023).

    A key at cache position j is seen by the query at position p when p - window < j <= p. Scores and softmax are
    float32. One sequence whose cache blocks lie in order: the number of blocks in `block_table` bounds the keys read.
    """
    import torch

    N, H, K = q_NHK.shape
    G = k_SGK.shape[1]
    length = step.block_table.shape[1] * BLOCK
    k_GLK = k_SGK[:length].transpose(0, 1)
    v_GLK = v_SGK[:length].transpose(0, 1)
    q_GRK = q_NHK.view(N, G, H // G, K).permute(1, 2, 0, 3).reshape(G, H // G * N, K)
    scores = torch.matmul(q_GRK * scale, k_GLK.transpose(1, 2)).float().view(H, N, length)
    keys = torch.arange(length, device=q_NHK.device)[None]
    query = step.positions[:, None]
    seen = keys <= query
    if window is not None:
        seen = seen & (keys > query - window)
    scores = scores.masked_fill(~seen, float("-inf"))
    weights = torch.softmax(scores, dim=-1).to(q_NHK.dtype)
    mixed = torch.matmul(weights.view(G, H // G * N, length), v_GLK)
    return mixed.view(H, N, K).transpose(0, 1)
