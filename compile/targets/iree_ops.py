"""Implementations of some ops for IREE, in place of their references.

N tokens of the step · B sequences · L keys of a sequence · H query heads · G key heads · R = H / G · K channels of a
query and a key · V of a value
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from bringup.graphs.ops.activation import soft_cap
from bringup.graphs.ops.attention import LEAST, Terms, attend, softmax
from bringup.graphs.ops.latent_attention import cheaper_form
from bringup.graphs.ops.quant_linear import joined
from bringup.graphs.ops.quantised import dequantise, pieces_of

if TYPE_CHECKING:
    from torch import Tensor

    from bringup.graphs.core.step import Step
    from bringup.graphs.ops.quantised import Quantised

AT_A_TIME = 1 << 20  # elements of a quantised weight that are dequantised at once, unless there would be more pieces
MOST_PIECES = 32


def row_attention(
    q_NHK: Tensor,
    k_BLGK: Tensor,
    v_BLGV: Tensor,
    step: Step,
    scale: float,
    window: int | None = None,
    **settings: Any,
) -> Tensor:
    """Decode as products and sums: for a matrix product, IREE 3.13 repacks the complete cache for a single row.

    GPT-2 at float32 takes 15.3 ms for each token in this form, and 20.0 ms with matrix products.
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


def quant_linear(x: Tensor, bias: Tensor | None, weight: Quantised) -> Tensor:
    """Processes some rows of the weight at a time: IREE 3.13 dequantises in a dispatch of its own, before the product.

    SmolLM2's head, [49152, 576] in int8, takes 105 ms and 113 MB of memory for floats at once, and 18 ms and 8 MB in
    this form. IREE computes values that depend on weights alone once, at load, and keeps them: small matrices and
    pieces of large ones as floats. So codes are made to depend on x as well, by a number that is 0 unless x is NaN.
    """
    from torch.nn import functional as F

    first = x.reshape(-1)[0]
    zero = (first != first).to(weight.codes.dtype)
    pieces = pieces_of(weight, max(AT_A_TIME, math.prod(weight.shape) // MOST_PIECES))
    parts = [F.linear(x, dequantise(rows._replace(codes=rows.codes + zero))) for rows in pieces]
    return joined(parts, bias)


def marked_keys(positions_NK: Tensor, length: int) -> Tensor:
    """By comparisons: IREE 3.13 scatters wrongly if several elements of a row are the same position."""
    import torch

    return (positions_NK[:, :, None] == torch.arange(length)).any(1)


IMPLEMENTATIONS: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {
        "row_attention": row_attention,
        "latent_attention": cheaper_form,
        "quant_linear": quant_linear,
        "marked_keys": marked_keys,
    }
)
