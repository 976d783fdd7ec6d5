"""Multi-head latent attention: its cache has one row of latent and rotated key for each token.

N tokens of the step · L keys of a sequence · H heads · c latent channels · d = n + p channels of a query and a key, of
which p are rotated · v of a value · q rank of the queries' latent · r = c + p channels of a cached row
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from bringup.graphs.core.module import Module, State
from bringup.graphs.core.options import current_options
from bringup.graphs.layers.latent_lora import narrower_results, wider_queries, with_rows
from bringup.graphs.layers.linear import Linear
from bringup.graphs.layers.norm import RMSNorm
from bringup.graphs.layers.packed_weight import dense
from bringup.graphs.ops.kv_cache import write_cache
from bringup.graphs.ops.latent_attention import latent_attention
from bringup.graphs.ops.rotary import rope

if TYPE_CHECKING:
    from torch import Tensor

    from bringup.graphs.core.step import Step
    from bringup.graphs.layers.sparse_indexer import Indexer

EPS = 1e-6  # of the norms of latents: that of transformers' DeepseekV3Attention, whatever `rms_norm_eps` is


class LatentAttention(Module):
    """Multi-head latent attention (DeepSeek-V2 report §2.1 and appendix C).

    A token's cached row is its latent and one rotated key, which all heads share; keys and values are projections of
    the latent. `scale_factor` multiplies the scores. With `indexer`, a query attends only to the keys that it selects.
    `growth` multiplies the queries, see `layers.query_growth`. With p = 0 nothing is rotated. `of` are the cached rows
    of an earlier layer, which this one reads instead of its own.
    """

    def __init__(
        self,
        m: int,
        h: int,
        *,
        q: int | None,
        c: int,
        n: int,
        p: int,
        v: int,
        bias: bool = False,
        interleaved: bool = True,
        scale_factor: float = 1.0,
        growth: Module | None = None,
        indexer: Indexer | None = None,
        eps: float = EPS,
        of: State | None = None,
    ) -> None:
        super().__init__()
        self.c, self.n, self.p, self.interleaved = c, n, p, interleaved
        self.scale, self.growth = scale_factor / math.sqrt(n + p), growth
        row, sizes = ("(c | p)", {"c": c, "p": p}) if p else ("c", {"c": c})
        if q is None:
            self.q_proj = Linear("out:(h d) in:m", h=h, d=n + p, m=m, bias=False)
        else:
            self.q_a_proj = Linear("out:q in:m", q=q, m=m, bias=bias)
            self.q_a_layernorm = RMSNorm(q, eps)
            self.q_b_proj = Linear("out:(h d) in:q", h=h, d=n + p, q=q, bias=False)
        if of is None:
            self.kv_a_proj_with_mqa = Linear(f"out:{row} in:m", **sizes, m=m, bias=bias)
            self.kv_a_layernorm = RMSNorm(c, eps)
        self.k_b_proj = Linear("out:(h n) in:c", h=h, n=n, c=c, bias=False)
        self.v_b_proj = Linear("out:(h v) in:c", h=h, v=v, c=c, bias=False)
        self.o_proj = Linear("out:m in:(h v)", h=h, v=v, m=m, bias=bias)
        self.indexer = indexer
        self.compressed, self.writes = q is not None, of is None
        self.latents = State(f"slot one row:{row}", one=1, **sizes, dtype=current_options().cache_dtype, of=of)

    def forward(self, x_Nm: Tensor, cos: Tensor, sin: Tensor, step: Step) -> Tensor:
        return self.attended(x_Nm, cos, sin, step, None)[0]

    def attended(
        self, x_Nm: Tensor, cos: Tensor, sin: Tensor, step: Step, selected_NL: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """The output, and the mask [N, L] of the keys attended to: `selected_NL`, or the selection of the indexer."""
        import torch

        if self.writes:
            write_cache(self.latents, step.slots, self._row(x_Nm, cos, sin))
        q_Nq = self.q_a_layernorm(self.q_a_proj(x_Nm)) if self.compressed else x_Nm
        q_NHd = (self.q_b_proj if self.compressed else self.q_proj)(q_Nq).unflatten(1, (-1, self.n + self.p))
        q_NHn, q_NHp = q_NHd if self.growth is None else self.growth(q_NHd, step), None
        if self.p:
            q_NHn, q_NHp = torch.split(q_NHn, [self.n, self.p], -1)
            q_NHp = rope(q_NHp, cos, sin, interleaved=self.interleaved)
        if self.indexer is not None:
            selected_NL = self.indexer(x_Nm, q_Nq, cos, sin, step)
        mixed_NHv = self._mixed(q_NHn, q_NHp, step, selected_NL)
        return self.o_proj(mixed_NHv.flatten(1)), selected_NL

    def _row(self, x_Nm: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """The row of each token for the cache [N, 1, r]: its latent, and the key that rotates if there is one."""
        import torch

        row_Nr = self.kv_a_proj_with_mqa(x_Nm)
        if not self.p:
            return self.kv_a_layernorm(row_Nr)[:, None]
        latent_Nc, turned_Np = row_Nr.split([self.c, self.p], -1)
        turned_N1p = rope(turned_Np[:, None], cos, sin, interleaved=self.interleaved)
        return torch.cat((self.kv_a_layernorm(latent_Nc)[:, None], turned_N1p), -1)

    def _mixed(self, q_NHn: Tensor, q_NHp: Tensor | None, step: Step, selected_NL: Tensor | None) -> Tensor:
        """The attention output of each head [N, H, v]. LoRAs of both matrices are additional rows (`latent_lora`)."""
        heads, loras = q_NHn.shape[1], [each.unfolded() for each in (self.k_b_proj, self.v_b_proj)]
        to_keys_xc, to_values_yc = (
            dense(each.weight) if lora is None else with_rows(dense(each.weight), heads, lora)
            for each, lora in zip((self.k_b_proj, self.v_b_proj), loras, strict=True)
        )
        of_keys, of_values = loras
        q_NHn = q_NHn if of_keys is None else wider_queries(q_NHn, of_keys)
        mixed_NHv = latent_attention(
            q_NHn, q_NHp, self.latents, to_keys_xc, to_values_yc, step, self.scale, selected_NL=selected_NL
        )
        return mixed_NHv if of_values is None else narrower_results(mixed_NHv, of_values)
