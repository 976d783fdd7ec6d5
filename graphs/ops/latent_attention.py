"""Attention whose cache is one row for each token: the latent that keys and values are projected from, and a rotated
key.

N tokens of B sequences · L rows of a sequence in the cache · H heads · c channels of the latent · d = n + p of a query
and a key, of which p rotate · v of a value
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bringup.graphs.ops.attention import attention, row_attention
from bringup.graphs.ops.kv_cache import cached_rows
from bringup.graphs.ops.linear import linear
from bringup.graphs.ops.op import op

if TYPE_CHECKING:
    from torch import Tensor

    from bringup.graphs.core.step import Step


@op("q_NHn[N H n] q_NHp[N H p] rows_S1r[S one r] to_keys_xc[Hn c] to_values_yc[Hv c] -> [N H v]")
def latent_attention(
    q_NHn: Tensor,
    q_NHp: Tensor | None,
    rows_S1r: Tensor,
    to_keys_xc: Tensor,
    to_values_yc: Tensor,
    step: Step,
    scale: float,
    *,
    selected_NL: Tensor | None = None,
) -> Tensor:
    """Multi-head latent attention (DeepSeek-V2 report, §2.1): the direct form, keys and values of every head computed.

    A row of the cache is c channels of a latent, then p of a key that all heads share, if there are such. For head h,
    keys are `to_keys_xc`[h] · latent and the p channels; values are `to_values_yc`[h] · latent. The other settings are
    those of `attention`. The absorbed form has the same result except for rounding: see `absorbed`.
    """
    import torch

    H, c = q_NHn.shape[1], to_keys_xc.shape[1]
    row_BL1r = cached_rows(rows_S1r, step).to(q_NHn.dtype)
    latent_BLc, rotated_BL1p = row_BL1r[:, :, 0, :c], row_BL1r[..., c:]
    k_BLHd = linear(latent_BLc, to_keys_xc).view(*latent_BLc.shape[:2], H, -1)
    v_BLHv = linear(latent_BLc, to_values_yc).view(*latent_BLc.shape[:2], H, -1)
    q_NHd = q_NHn
    if q_NHp is not None:
        q_NHd = torch.cat((q_NHn, q_NHp), -1)
        k_BLHd = torch.cat((k_BLHd, rotated_BL1p.expand(-1, -1, H, -1)), -1)
    return row_attention(q_NHd, k_BLHd, v_BLHv, step, scale, selected_NL=selected_NL)


def absorbed(
    q_NHn: Tensor,
    q_NHp: Tensor | None,
    rows_S1r: Tensor,
    to_keys_xc: Tensor,
    to_values_yc: Tensor,
    step: Step,
    scale: float,
    *,
    selected_NL: Tensor | None = None,
) -> Tensor:
    """`latent_attention` in the absorbed form (DeepSeek-V2 report, appendix C), for targets that select it.

    Queries are multiplied by the keys' matrix, so that the cached rows are keys and values of a single head; only the
    result is multiplied by the values' matrix. No key or value of a head is computed.
    """
    import torch

    H, c = q_NHn.shape[1], to_keys_xc.shape[1]
    to_latent_Hnc = to_keys_xc.view(H, -1, c)
    from_latent_Hcv = to_values_yc.view(H, -1, c).transpose(1, 2)
    q_NHc = torch.bmm(q_NHn.transpose(0, 1), to_latent_Hnc).transpose(0, 1)
    q_NHr = q_NHc if q_NHp is None else torch.cat((q_NHc, q_NHp), -1)
    mixed_NHc = attention(q_NHr, rows_S1r, rows_S1r[..., :c], step, scale, selected_NL=selected_NL)
    return torch.bmm(mixed_NHc.transpose(0, 1), from_latent_Hcv).transpose(0, 1)


def cheaper_form(
    q_NHn: Tensor,
    q_NHp: Tensor | None,
    rows_S1r: Tensor,
    to_keys_xc: Tensor,
    to_values_yc: Tensor,
    step: Step,
    scale: float,
    *,
    selected_NL: Tensor | None = None,
) -> Tensor:
    """`latent_attention` in the form with fewer multiplications, for targets that select it: absorbed for decode.

    For Q queries of a sequence, the direct form needs L·H·c·(n + v) products for its keys and values, and
    Q·L·H·(n + p + v) for scores and sums; the absorbed form needs Q·L·H·(2 c + p), and no other term grows with L.
    """
    H, n, c = q_NHn.shape[1], q_NHn.shape[2], to_keys_xc.shape[1]
    v = to_values_yc.shape[0] // H
    queries = 1 if step.decode else q_NHn.shape[0]
    form = absorbed if queries * (2 * c - n - v) < c * (n + v) else latent_attention.reference
    return form(q_NHn, q_NHp, rows_S1r, to_keys_xc, to_values_yc, step, scale, selected_NL=selected_NL)
