from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

from bringup.graphs.core.module import Module, Param
from bringup.graphs.layers.kv_cache import KVCache
from bringup.graphs.layers.linear import Linear
from bringup.graphs.layers.norm import Norm, RMSNorm
from bringup.graphs.ops.activation import scaled
from bringup.graphs.ops.attention import attention
from bringup.graphs.ops.rotary import rope

if TYPE_CHECKING:
    from torch import Tensor

    from bringup.graphs.core.step import Step


class GroupedAttention(Module):
    """Attention with rope, if there is any, h query heads to g key heads of d channels (Ainslie et al. 2023).

    `qk_norm`: epsilon of a norm, of class `norm`, over each head's queries and keys (Henry et al. 2020), before rope.
    `norm_over`: "head", or "projection" for one norm over all heads of a token (OLMo 2 report, section 3.3). `scale`
    multiplies the scores; None is 1 / √d. `softcap` caps them: see `ops.attention`. `window`: the number of tokens to
    attend to, including the own one; if `chunked`, the number of tokens of a chunk, within which they attend. `sinks`:
    a learned score for each head of a key without a value. `output_gate`: the result of each head is multiplied by the
    sigmoid of a projection. `inputs`: the channels of the input, if other than m. `values`: the channels of a value, if
    other than d; `value_scale` multiplies the values.
    """

    def __init__(
        self,
        m: int,
        h: int,
        g: int,
        d: int,
        *,
        inputs: int | None = None,
        values: int | None = None,
        value_scale: float = 1.0,
        bias: bool = False,
        out_bias: bool = False,
        qk_norm: float | None = None,
        norm: Norm = RMSNorm,
        norm_over: Literal["head", "projection"] = "head",
        scale: float | None = None,
        softcap: float | None = None,
        window: int | None = None,
        chunked: bool = False,
        sinks: bool = False,
        output_gate: bool = False,
    ) -> None:
        super().__init__()
        self.head_dim, self.window, self.chunked, self.softcap = d, window, chunked, softcap
        self.scale = 1 / math.sqrt(d) if scale is None else scale
        self.norm_over, self.value_scale = norm_over, value_scale
        query, key = (d, d) if norm_over == "head" else (h * d, g * d)
        width, v = inputs or m, values or d
        self.q_proj = Linear("out:(h d) in:m", h=h, d=d, m=width, bias=bias)
        self.output_gate_proj = Linear("out:(h d) in:m", h=h, d=v, m=width, bias=bias) if output_gate else None
        self.k_proj = Linear("out:(g d) in:m", g=g, d=d, m=width, bias=bias)
        self.v_proj = Linear("out:(g d) in:m", g=g, d=v, m=width, bias=bias)
        self.o_proj = Linear("out:m in:(h d)", h=h, d=v, m=m, bias=out_bias)
        self.q_norm = norm(query, qk_norm) if qk_norm is not None else None
        self.k_norm = norm(key, qk_norm) if qk_norm is not None else None
        self.sinks = Param("h", h=h) if sinks else None
        self.cache = KVCache(g, d, window, values=values)

    def forward(self, x_Nm: Tensor, cos: Tensor | None, sin: Tensor | None, step: Step) -> Tensor:
        """`cos` and `sin` are None in a model without rope."""
        q_NHD = self._heads(x_Nm, self.q_proj, self.q_norm)
        k_NGD = self._heads(x_Nm, self.k_proj, self.k_norm)
        v_NGV = scaled(self.v_proj(x_Nm).unflatten(1, (k_NGD.shape[1], -1)), self.value_scale)
        q_NHD, k_NGD = self.with_positions(q_NHD, k_NGD, cos, sin, step)
        keys, values = self.cache(step, k_NGD, v_NGV)
        mixed = attention(
            q_NHD, keys, values, step, self.scale, self.window, chunked=self.chunked,
            ring=self.cache.ring, sinks_H=self.sinks, softcap=self.softcap,
        )  # fmt: skip
        mixed_Nx = mixed.flatten(1)
        if self.output_gate_proj is not None:
            mixed_Nx = mixed_Nx * self.output_gate_proj(x_Nm).sigmoid()
        return self.o_proj(mixed_Nx)

    def with_positions(
        self, q_NHD: Tensor, k_NGD: Tensor, cos: Tensor | None, sin: Tensor | None, step: Step
    ) -> tuple[Tensor, Tensor]:
        """Queries and keys as functions of their positions: rotated. A family may compute them in another way."""
        if cos is None or sin is None:
            return q_NHD, k_NGD
        return rope(q_NHD, cos, sin), rope(k_NGD, cos, sin)

    def _heads(self, x_Nm: Tensor, projection: Module, norm: Module | None) -> Tensor:
        """A projection of each head [N, heads, d], after its norm."""
        projected = projection(x_Nm)
        if norm is not None and self.norm_over == "projection":
            projected = norm(projected)
        heads_NHD = projected.unflatten(1, (-1, self.head_dim))
        return norm(heads_NHD) if norm is not None and self.norm_over == "head" else heads_NHD
