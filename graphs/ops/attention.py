"""Causal attention of B sequences.

N tokens of the step · L keys of a sequence · H query heads · G key heads · R = H / G · K channels of a query and a
key · V of a value
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bringup.graphs.ops.activation import soft_cap
from bringup.graphs.ops.kv_cache import cached_rows, ring_positions
from bringup.graphs.ops.op import op

if TYPE_CHECKING:
    from torch import Tensor

    from bringup.graphs.core.step import Step

# The score of a key that is not seen: its share is 0 where any is seen. Where none is (padding; in packed prefill the
# tokens of other sequences), the result is finite nevertheless, which that of -inf is not.
LEAST = -3.4e38


@op("q_NHK[N H K] k_SGK[S G K] v_SGV[S G V] -> [N H V]")
def attention(
    q_NHK: Tensor,
    k_SGK: Tensor,
    v_SGV: Tensor,
    step: Step,
    scale: float,
    window: int | None = None,
    *,
    ring: int | None = None,
    sinks_H: Tensor | None = None,
    slopes_H: Tensor | None = None,
    chosen_NL: Tensor | None = None,
    softcap: float | None = None,
) -> Tensor:
    """Causal attention of one step's queries over the paged cache, H query heads to G key heads (Ainslie et al. 2023).

    A query sees the keys of its own sequence. A key at position j is seen by the query at position p when
    p - window < j <= p and, with `chosen_NL`, when that says so. Scores, softmax and the sum over values are float32.
    `sinks_H` are scores of a key without a value, one a head (Xiao et al. 2023, as gpt-oss learns them). `slopes_H` add
    slope · (j - p) to the scores (Press et al. 2021, ALiBi). `softcap` bounds the scores before that: see `soft_cap`.
    `ring` is that of the caches, see `KVCache`. What padding gives is finite and has no meaning.
    """
    keys, values = cached_rows(k_SGK, step, ring), cached_rows(v_SGV, step, ring)
    return row_attention(
        q_NHK, keys, values, step, scale, window,
        ring=ring, sinks_H=sinks_H, slopes_H=slopes_H, chosen_NL=chosen_NL, softcap=softcap,
    )  # fmt: skip


@op("q_NHK[N H K] k_BLGK[B L G K] v_BLGV[B L G V] -> [N H V]")
def row_attention(
    q_NHK: Tensor,
    k_BLGK: Tensor,
    v_BLGV: Tensor,
    step: Step,
    scale: float,
    window: int | None = None,
    *,
    ring: int | None = None,
    sinks_H: Tensor | None = None,
    slopes_H: Tensor | None = None,
    chosen_NL: Tensor | None = None,
    softcap: float | None = None,
) -> Tensor:
    """As `attention`, over the rows of each sequence in order of positions, as `cached_rows` gives them."""

    G = k_BLGK.shape[2]
    q_NGRK = q_NHK.reshape(q_NHK.shape[0], G, -1, q_NHK.shape[2])
    sinks_GR = None if sinks_H is None else sinks_H.view(G, -1).float()
    at_BL = _key_positions(k_BLGK, step, ring)

    def bias(keys: Tensor) -> Tensor | None:
        distance_NL = keys - step.positions[:, None]
        return None if slopes_H is None else slopes_H.view(G, -1, 1, 1) * distance_NL.float()

    def seen(keys: Tensor) -> Tensor:
        query = step.positions[:, None]
        seen_NL = keys <= query
        if ring is not None:
            seen_NL = seen_NL & (keys >= 0)
        if window is not None:
            seen_NL = seen_NL & (keys > query - window)
        return seen_NL if chosen_NL is None else seen_NL & chosen_NL

    if step.decode:
        mixed_NGRV = _one_query(q_NGRK, k_BLGK, v_BLGV, seen(at_BL), scale, bias(at_BL), sinks_GR, softcap)
    else:
        of_each: list[Tensor] = []
        for b in range(k_BLGK.shape[0]):
            keys_1L = at_BL if ring is None else at_BL[b : b + 1]
            terms = seen(keys_1L), scale, bias(keys_1L), sinks_GR, softcap
            of_each.append(_many_queries(q_NGRK, k_BLGK[b], v_BLGV[b], *terms))
        mixed_NGRV = of_own_sequence(of_each, step)
    return mixed_NGRV.flatten(1, 2).to(q_NHK.dtype)


def _key_positions(k_BLGK: Tensor, step: Step, ring: int | None) -> Tensor:
    """The position of each key: [B, L] of a ring; [1, L] where it is the same for all sequences."""
    import torch

    return torch.arange(k_BLGK.shape[1])[None] if ring is None else ring_positions(step, ring)


def of_own_sequence(of_each: list[Tensor], step: Step) -> Tensor:
    """The rows of each token from its own sequence's tensor: `of_each` has B of them, [N, …] each."""
    import torch

    mixed, *others = of_each
    if others:
        sequence_N = step.sequences().view(-1, *[1] * (mixed.dim() - 1))
        for index, other in enumerate(others, 1):
            mixed = torch.where(sequence_N == index, other, mixed)
    return mixed


def _one_query(
    q_BGRK: Tensor,
    k_BLGK: Tensor,
    v_BLGV: Tensor,
    seen_BL: Tensor,
    scale: float,
    bias_GRBL: Tensor | None,
    sinks_GR: Tensor | None,
    softcap: float | None,
) -> Tensor:
    """As products and sums: a matrix product would have a compiler repack the whole cache for a single row."""
    scores_BLGR = soft_cap((k_BLGK.float()[:, :, :, None] * q_BGRK.float()[:, None]).sum(-1) * scale, softcap)
    if bias_GRBL is not None:
        scores_BLGR = scores_BLGR + bias_GRBL.permute(2, 3, 0, 1)
    scores_BLGR = scores_BLGR.masked_fill(~seen_BL[:, :, None, None], LEAST)
    weights_BLGR = _softmax(scores_BLGR, None if sinks_GR is None else sinks_GR[None], 1)
    return (weights_BLGR[..., None] * v_BLGV.float()[:, :, :, None]).sum(1)


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
    scores_GRNL = scores_GRNL.masked_fill(~seen_NL, LEAST)
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
