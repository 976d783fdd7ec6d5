"""What IREE compiles in place of the references of some ops.

N tokens of the step · B sequences · L keys of a sequence · H query heads · G key heads · R = H / G · K channels of a
query and a key · V of a value
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from bringup.graphs.ops.activation import soft_cap
from bringup.graphs.ops.attention import LEAST, Terms, attend, softmax
from bringup.graphs.ops.latent_attention import cheaper_form

if TYPE_CHECKING:
    from torch import Tensor

    from bringup.graphs.core.step import Step


def row_attention(
    q_NHK: Tensor,
    k_BLGK: Tensor,
    v_BLGV: Tensor,
    step: Step,
    scale: float,
    window: int | None = None,
    **settings: Any,
) -> Tensor:
    """Decode as products and sums: of a matrix product, IREE 3.13 repacks the whole cache for a single row.

    GPT-2 at float32 takes 15.3 ms a token so, and 20.0 ms with matrix products.
    """
    return attend(q_NHK, k_BLGK, v_BLGV, Terms(step, scale, window, **settings), _one_query)


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
    scores_BLGR = soft_cap((k_BLGK.float()[:, :, :, None] * q_BGRK.float()[:, None]).sum(-1) * scale, softcap)
    if bias_GRBL is not None:
        scores_BLGR = scores_BLGR + bias_GRBL.permute(2, 3, 0, 1)
    scores_BLGR = scores_BLGR.masked_fill(~seen_BL[:, :, None, None], LEAST)
    weights_BLGR = softmax(scores_BLGR, None if sinks_GR is None else sinks_GR[None], 1)
    return (weights_BLGR[..., None] * v_BLGV.float()[:, :, :, None]).sum(1)


IMPLEMENTATIONS: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {"row_attention": row_attention, "latent_attention": cheaper_form}
)
