"""Attention whose cache is one latent row a token.

N tokens of B sequences · L rows of a sequence in the cache · H heads · c latent channels · d = n + p of a query and a
key, of which p turn · v of a value · q rank of the queries' latent
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from bringup.graphs.core.module import Module, State
from bringup.graphs.layers.linear import Linear
from bringup.graphs.layers.norm import RMSNorm
from bringup.graphs.ops.attention import attention, row_attention
from bringup.graphs.ops.kv_cache import cached_rows, write_cache
from bringup.graphs.ops.rotary import rope

if TYPE_CHECKING:
    from torch import Tensor

    from bringup.graphs.core.graph import Step
    from bringup.graphs.layers.sparse_indexer import Indexer

EPS = 1e-6  # of the norms of latents, whatever `rms_norm_eps` says (transformers' DeepseekV3Attention)


class LatentAttention(Module):
    """Multi-head latent attention (DeepSeek-V2 report §2.1 and appendix C).

    A token's cached row is its latent and one key that turns, the same for all heads; keys and values are products of
    the latent. `sharpened` multiplies the scores. With `indexer`, a query sees only the keys which that chooses.
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
        sharpened: float = 1.0,
        indexer: Indexer | None = None,
    ) -> None:
        super().__init__()
        self.c, self.n, self.p, self.interleaved = c, n, p, interleaved
        self.scale = sharpened / math.sqrt(n + p)
        if q is None:
            self.q_proj = Linear("out:(h d) in:m", h=h, d=n + p, m=m, bias=False)
        else:
            self.q_a_proj = Linear("out:q in:m", q=q, m=m, bias=bias)
            self.q_a_layernorm = RMSNorm(q, EPS)
            self.q_b_proj = Linear("out:(h d) in:q", h=h, d=n + p, q=q, bias=False)
        self.kv_a_proj_with_mqa = Linear("out:(c | p) in:m", c=c, p=p, m=m, bias=bias)
        self.kv_a_layernorm = RMSNorm(c, EPS)
        self.k_b_proj = Linear("out:(h n) in:c", h=h, n=n, c=c, bias=False)
        self.v_b_proj = Linear("out:(h v) in:c", h=h, v=v, c=c, bias=False)
        self.o_proj = Linear("out:m in:(h v)", h=h, v=v, m=m, bias=bias)
        self.indexer = indexer
        self.compressed = q is not None
        self.latents = State("slot one row:(c | p)", one=1, c=c, p=p)

    def forward(self, x_Nm: Tensor, cos: Tensor, sin: Tensor, step: Step) -> Tensor:
        import torch

        latent_Nc, turned_Np = self.kv_a_proj_with_mqa(x_Nm).split([self.c, self.p], -1)
        turned_N1p = rope(turned_Np[:, None], cos, sin, interleaved=self.interleaved)
        row_N1r = torch.cat((self.kv_a_layernorm(latent_Nc)[:, None], turned_N1p), -1)
        write_cache(self.latents, step.slots, row_N1r)

        q_Nq = self.q_a_layernorm(self.q_a_proj(x_Nm)) if self.compressed else x_Nm
        q_NHd = (self.q_b_proj if self.compressed else self.q_proj)(q_Nq).unflatten(1, (-1, self.n + self.p))
        q_NHn, q_NHp = q_NHd.split([self.n, self.p], -1)
        q_NHp = rope(q_NHp, cos, sin, interleaved=self.interleaved)
        chosen_NL = None if self.indexer is None else self.indexer(x_Nm, q_Nq, cos, sin, step)
        over = self._absorbed if step.decode else self._expanded
        return self.o_proj(over(q_NHn, q_NHp, step, chosen_NL).flatten(1))

    def _expanded(self, q_NHn: Tensor, q_NHp: Tensor, step: Step, chosen_NL: Tensor | None) -> Tensor:
        """Keys and values of every head, computed from the latents that can be seen."""
        import torch

        H = q_NHn.shape[1]
        row_BL1r = cached_rows(self.latents, step)
        latent_BLc, turned_BL1p = row_BL1r[:, :, 0, : self.c], row_BL1r[..., self.c :]
        k_BLHn = self.k_b_proj(latent_BLc).unflatten(2, (H, -1))
        v_BLHv = self.v_b_proj(latent_BLc).unflatten(2, (H, -1))
        q_NHd = torch.cat((q_NHn, q_NHp), -1)
        k_BLHd = torch.cat((k_BLHn, turned_BL1p.expand(-1, -1, H, -1)), -1)
        return row_attention(q_NHd, k_BLHd, v_BLHv, step, self.scale, chosen_NL=chosen_NL)

    def _absorbed(self, q_NHn: Tensor, q_NHp: Tensor, step: Step, chosen_NL: Tensor | None) -> Tensor:
        """Queries meet the latents, which are keys and values of a single head; only what comes out is taken on."""
        import torch

        H = q_NHn.shape[1]
        to_latent_Hnc = self.k_b_proj.weight.view(H, -1, self.c)
        from_latent_Hcv = self.v_b_proj.weight.view(H, -1, self.c).transpose(1, 2)
        q_NHc = torch.bmm(q_NHn.transpose(0, 1), to_latent_Hnc).transpose(0, 1)
        q_NHr = torch.cat((q_NHc, q_NHp), -1)
        mixed_NHc = attention(q_NHr, self.latents, self.latents[..., : self.c], step, self.scale, chosen_NL=chosen_NL)
        return torch.bmm(mixed_NHc.transpose(0, 1), from_latent_Hcv).transpose(0, 1)
