from __future__ import annotations

from typing import TYPE_CHECKING

from bringup.graphs.ops.activation import soft_cap
from bringup.graphs.ops.op import op

if TYPE_CHECKING:
    from torch import Tensor

    from bringup.graphs.core.graph import Step

BLOCK = 64  # cache rows that an entry of block_table stands for


@op("q_NHK[N H K] k_SGK[S G K] v_SGV[S G V] -> [N H V]")
def attention(
    q_NHK: Tensor,
    k_SGK: Tensor,
    v_SGV: Tensor,
    step: Step,
    scale: float,
    window: int | None = None,
    *,
    sinks_H: Tensor | None = None,
    slopes_H: Tensor | None = None,
    chosen_NL: Tensor | None = None,
    softcap: float | None = None,
) -> Tensor:
    """Causal attention of one step's queries over the cache, H query heads to G key heads (Ainslie et al. 2023).

    A key at cache position j is seen by the query at position p when p - window < j <= p and, with `chosen_NL`, when
    that says so. Scores, softmax and the sum over values are float32. `sinks_H` are scores of a key without a value,
    one a head (Xiao et al. 2023, as gpt-oss learns them). `slopes_H` add slope · (j - p) to the scores (Press et al.
    2021, ALiBi). `softcap` bounds the scores before that: see `soft_cap`.

    One sequence whose cache blocks lie in order: the number of blocks in `block_table` bounds the L keys that are read.
    R = H / G queries share a key head.
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
    if chosen_NL is not None:
        seen_NL = seen_NL & chosen_NL
    bias_GRNL = None if slopes_H is None else slopes_H.view(G, -1, 1, 1) * (keys - query).float()
    sinks_GR = None if sinks_H is None else sinks_H.view(G, -1).float()
    over = _one_query if q_NHK.shape[0] == 1 else _many_queries
    mixed_NGRV = over(q_NGRK, k_SGK[:L], v_SGV[:L], seen_NL, scale, bias_GRNL, sinks_GR, softcap)
    return mixed_NGRV.flatten(1, 2).to(q_NHK.dtype)


def _one_query(
    q_NGRK: Tensor,
    k_LGK: Tensor,
    v_LGV: Tensor,
    seen_NL: Tensor,
    scale: float,
    bias_GRNL: Tensor | None,
    sinks_GR: Tensor | None,
    softcap: float | None,
) -> Tensor:
    """As products and sums: a matrix product would have a compiler repack the whole cache for a single row."""
    scores_LGR = soft_cap((k_LGK.float()[:, :, None] * q_NGRK.float()).sum(-1) * scale, softcap)
    if bias_GRNL is not None:
        scores_LGR = scores_LGR + bias_GRNL[:, :, 0].permute(2, 0, 1)
    scores_LGR = scores_LGR.masked_fill(~seen_NL[0][:, None, None], float("-inf"))
    weights_LGR = _softmax(scores_LGR, sinks_GR, 0)
    return (weights_LGR[..., None] * v_LGV.float()[:, :, None]).sum(0, keepdim=True)


def _many_queries(
    q_NGRK: Tensor,
    k_LGK: Tensor,
    v_LGV: Tensor,
    seen_NL: Tensor,
    scale: float,
    bias_GRNL: Tensor | None,
    sinks_GR: Tensor | None,
    softcap: float | None,
) -> Tensor:
    import torch

    N, G, R, K = q_NGRK.shape
    L, V = k_LGK.shape[0], v_LGV.shape[2]
    rows = q_NGRK.permute(1, 2, 0, 3).reshape(G, R * N, K)
    scores_GRNL = soft_cap(torch.bmm(rows, k_LGK.permute(1, 2, 0)).view(G, R, N, L).float() * scale, softcap)
    if bias_GRNL is not None:
        scores_GRNL = scores_GRNL + bias_GRNL
    scores_GRNL = scores_GRNL.masked_fill(~seen_NL, float("-inf"))
    weights_GRNL = _softmax(scores_GRNL, None if sinks_GR is None else sinks_GR[..., None], -1)
    mixed = torch.bmm(weights_GRNL.view(G, R * N, L), v_LGV.permute(1, 0, 2).float())
    return mixed.view(G, R, N, V).permute(2, 0, 1, 3)


def _softmax(scores: Tensor, sinks: Tensor | None, axis: int) -> Tensor:
    """Along an axis; `sinks`, of the other axes, takes a share that goes nowhere."""
    import torch

    if sinks is None:
        return torch.softmax(scores, dim=axis)
    most = torch.maximum(scores.amax(axis), sinks).unsqueeze(axis)
    shares = torch.exp(scores - most)
    return shares / (shares.sum(axis, keepdim=True) + torch.exp(sinks.unsqueeze(axis) - most))
