from __future__ import annotations

import math
from typing import TYPE_CHECKING

from bringup.graphs.core.module import Module, Param
from bringup.graphs.layers.kv_cache import KVCache
from bringup.graphs.layers.linear import Linear
from bringup.graphs.layers.norm import RMSNorm
from bringup.graphs.ops.attention import attention
from bringup.graphs.ops.rotary import rope

if TYPE_CHECKING:
    from torch import Tensor

    from bringup.graphs.core.graph import Step


class GroupedAttention(Module):
    """Attention with rope, h query heads to g key heads of d channels (Ainslie et al. 2023).

    `qk_norm`: epsilon of an RMSNorm over each head's queries and keys (Henry et al. 2020), before they turn. `window`:
    how many tokens are seen, the own one among them. `sinks`: a learnt score a head of a key without value.
    """

    def __init__(
        self,
        m: int,
        h: int,
        g: int,
        d: int,
        *,
        bias: bool = False,
        out_bias: bool = False,
        qk_norm: float | None = None,
        window: int | None = None,
        sinks: bool = False,
    ) -> None:
        super().__init__()
        self.head_dim, self.window, self.scale = d, window, 1 / math.sqrt(d)
        self.q_proj = Linear("out:(h d) in:m", h=h, d=d, m=m, bias=bias)
        self.k_proj = Linear("out:(g d) in:m", g=g, d=d, m=m, bias=bias)
        self.v_proj = Linear("out:(g d) in:m", g=g, d=d, m=m, bias=bias)
        self.o_proj = Linear("out:m in:(h d)", h=h, d=d, m=m, bias=out_bias)
        self.q_norm = RMSNorm(d, qk_norm) if qk_norm is not None else None
        self.k_norm = RMSNorm(d, qk_norm) if qk_norm is not None else None
        self.sinks = Param("h", h=h) if sinks else None
        self.cache = KVCache(g, d, window)

    def forward(self, x_Nm: Tensor, cos: Tensor, sin: Tensor, step: Step) -> Tensor:
        q_NHD = self.q_proj(x_Nm).unflatten(1, (-1, self.head_dim))
        k_NGD = self.k_proj(x_Nm).unflatten(1, (-1, self.head_dim))
        v_NGD = self.v_proj(x_Nm).unflatten(1, (-1, self.head_dim))
        if self.q_norm is not None and self.k_norm is not None:
            q_NHD, k_NGD = self.q_norm(q_NHD), self.k_norm(k_NGD)
        keys, values = self.cache(step, rope(k_NGD, cos, sin), v_NGD)
        q_NHD = rope(q_NHD, cos, sin)
        mixed = attention(q_NHD, keys, values, step, self.scale, self.window, ring=self.cache.ring, sinks_H=self.sinks)
        return self.o_proj(mixed.flatten(1))
