"""Causal attention of B sequences.

N tokens of the step · L keys of a sequence · H query heads · G key heads · R = H / G · K channels of a query and a
key · V of a value
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from bringup.graphs.ops.activation import soft_cap
from bringup.graphs.ops.kv_cache import cached_rows, ring_positions
from bringup.graphs.ops.op import op

if TYPE_CHECKING:
    from torch import Tensor

    from bringup.graphs.core.step import Step

# The score of a masked key: its softmax weight is 0 if any key is not masked. If all are (padding; in packed prefill
# the tokens of other sequences), the result is finite, unlike with -inf.
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
    chunked: bool = False,
    ring: int | None = None,
    sinks_H: Tensor | None = None,
    slopes_H: Tensor | None = None,
    selected_NL: Tensor | None = None,
    softcap: float | None = None,
) -> Tensor:
    """Causal attention of one step's queries over the paged cache, H query heads to G key heads (Ainslie et al. 2023).

    A query attends to the keys of its own sequence. The query at position p attends to the key at position j if
    first(p) <= j <= p and, with `selected_NL`, if that is true; see `first_key` for `window` and `chunked`. Scores,
    softmax and the sum over values are float32. Keys and values may have the dtype of the cache instead of that of
    queries (`GraphOptions.cache_dtype`). `sinks_H` are scores of a key without a value, one for each head (Xiao et al.
    2023, as gpt-oss learns them). `slopes_H` add slope · (j - p) to the scores (Press et al. 2021, ALiBi). `softcap`
    caps the scores before that: see `soft_cap`. `ring` is that of the caches, see `KVCache`. Results for padding are
    finite and undefined.
    """
    keys, values = cached_rows(k_SGK, step, ring), cached_rows(v_SGV, step, ring)
    return row_attention(
        q_NHK, keys, values, step, scale, window, chunked=chunked,
        ring=ring, sinks_H=sinks_H, slopes_H=slopes_H, selected_NL=selected_NL, softcap=softcap,
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
    chunked: bool = False,
    ring: int | None = None,
    sinks_H: Tensor | None = None,
    slopes_H: Tensor | None = None,
    selected_NL: Tensor | None = None,
    softcap: float | None = None,
) -> Tensor:
    """As `attention`, over the rows of each sequence in the order of `cached_rows`: by position, or those of a ring."""
    terms = Terms(
        step, scale, window, chunked=chunked,
        ring=ring, sinks_H=sinks_H, slopes_H=slopes_H, selected_NL=selected_NL, softcap=softcap,
    )  # fmt: skip
    return attend(q_NHK, k_BLGK, v_BLGV, terms, _one_query)


def first_key(positions: Tensor, window: int, chunked: bool) -> Tensor:
    """The position of the first key that the queries at some positions attend to; negative for all keys.

    That of the last `window` tokens, or, if `chunked`, of the query's own chunk (Llama 4): positions from a multiple of
    `window` up to the next. In both cases a query attends to at most `window` keys.
    """
    return positions - positions % window if chunked else positions + 1 - window


@dataclass(frozen=True, slots=True)
class Terms:
    """The settings of `attention` that change scores or mask keys."""

    step: Step
    scale: float
    window: int | None = None
    chunked: bool = field(default=False, kw_only=True)
    ring: int | None = field(default=None, kw_only=True)
    sinks_H: Tensor | None = field(default=None, kw_only=True)
    slopes_H: Tensor | None = field(default=None, kw_only=True)
    selected_NL: Tensor | None = field(default=None, kw_only=True)
    softcap: float | None = field(default=None, kw_only=True)

    def sinks(self, groups: int) -> Tensor | None:
        """Scores [G, R] of the keys without a value."""
        return None if self.sinks_H is None else self.sinks_H.view(groups, -1).float()

    def bias(self, groups: int, keys: Tensor) -> Tensor | None:
        """The bias of the scores [G, R, N, L] of keys at these positions [N or 1, L]."""
        distance_NL = keys - self.step.positions[:, None]
        return None if self.slopes_H is None else self.slopes_H.view(groups, -1, 1, 1) * distance_NL.float()

    def seen(self, keys: Tensor) -> Tensor:
        """The mask [N, L] of the keys that each query attends to, for keys at these positions [N or 1, L]."""
        query = self.step.positions[:, None]
        seen_NL = keys <= query
        if self.ring is not None:
            seen_NL = seen_NL & (keys >= 0)
        if self.window is not None:
            seen_NL = seen_NL & (keys >= first_key(query, self.window, self.chunked))
        return seen_NL if self.selected_NL is None else seen_NL & self.selected_NL


class OneQuery(Protocol):
    """Attention of one query for each sequence, in float32, over the keys of its sequence."""

    def __call__(
        self,
        q_BGRK: Tensor,
        k_BLGK: Tensor,
        v_BLGV: Tensor,
        seen_BL: Tensor,
        scale: float,
        bias_GRBL: Tensor | None,
        sinks_GR: Tensor | None,
        softcap: float | None,
    ) -> Tensor: ...


def attend(q_NHK: Tensor, k_BLGK: Tensor, v_BLGV: Tensor, terms: Terms, one_query: OneQuery) -> Tensor:
    """`row_attention` [N, H, V] with a formulation of decode; prefill is matrix products, sequence by sequence."""
    G = k_BLGK.shape[2]
    q_NGRK = q_NHK.reshape(q_NHK.shape[0], G, -1, q_NHK.shape[2])
    sinks_GR, at_BL = terms.sinks(G), _key_positions(k_BLGK, terms.step, terms.ring)
    if terms.step.decode:
        seen_BL, bias_GRBL = terms.seen(at_BL), terms.bias(G, at_BL)
        mixed_NGRV = one_query(q_NGRK, k_BLGK, v_BLGV, seen_BL, terms.scale, bias_GRBL, sinks_GR, terms.softcap)
    else:
        of_each: list[Tensor] = []
        for b in range(k_BLGK.shape[0]):
            keys_1L = at_BL if terms.ring is None else at_BL[b : b + 1]
            scoring = terms.seen(keys_1L), terms.scale, terms.bias(G, keys_1L), sinks_GR, terms.softcap
            of_each.append(_many_queries(q_NGRK, k_BLGK[b], v_BLGV[b], *scoring))
        mixed_NGRV = of_own_sequence(of_each, terms.step)
    return mixed_NGRV.flatten(1, 2).to(q_NHK.dtype)


def _key_positions(k_BLGK: Tensor, step: Step, ring: int | None) -> Tensor:
    """The position of each key: [B, L] for a ring; [1, L] if it is the same for all sequences."""
    import torch

    return torch.arange(k_BLGK.shape[1])[None] if ring is None else ring_positions(step, ring)


def of_own_sequence(of_each: list[Tensor], step: Step) -> Tensor:
    """The rows of each token from its own sequence's tensor: `of_each` has B tensors [N, …]."""
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
    """Decode attention as matrix products."""
    scores_BGRL = soft_cap(q_BGRK.float() @ k_BLGK.float().permute(0, 2, 3, 1) * scale, softcap)
    if bias_GRBL is not None:
        scores_BGRL = scores_BGRL + bias_GRBL.permute(2, 0, 1, 3)
    scores_BGRL = scores_BGRL.masked_fill(~seen_BL[:, None, None], LEAST)
    weights_BGRL = softmax(scores_BGRL, None if sinks_GR is None else sinks_GR[None], -1)
    return weights_BGRL @ v_BLGV.float().transpose(1, 2)


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
    k_LGK = k_LGK.to(rows.dtype)
    scores_GRNL = soft_cap(torch.bmm(rows, k_LGK.permute(1, 2, 0)).view(G, R, N, L).float() * scale, softcap)
    if bias_GRNL is not None:
        scores_GRNL = scores_GRNL + bias_GRNL
    scores_GRNL = scores_GRNL.masked_fill(~seen_NL, LEAST)
    weights_GRNL = softmax(scores_GRNL, None if sinks_GR is None else sinks_GR[..., None], -1)
    mixed = torch.bmm(weights_GRNL.view(G, R * N, L), v_LGV.permute(1, 0, 2).float())
    return mixed.view(G, R, N, V).permute(2, 0, 1, 3)


def softmax(scores: Tensor, sinks: Tensor | None, axis: int) -> Tensor:
    """Softmax along an axis; `sinks`, which lack this axis, are added to the denominator."""
    import torch

    if sinks is None:
        return torch.softmax(scores, dim=axis)
    most = torch.maximum(scores.amax(axis), sinks).unsqueeze(axis)
    shares = torch.exp(scores - most)
    return shares / (shares.sum(axis, keepdim=True) + torch.exp(sinks.unsqueeze(axis) - most))
