"""The selection of the keys that a query of DeepSeek-V3.2, GLM-5 or Mistral Large 4 attends to."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from bringup.graphs.core.module import Module, State
from bringup.graphs.core.options import current_options
from bringup.graphs.layers.linear import Linear
from bringup.graphs.layers.norm import LayerNorm
from bringup.graphs.layers.packed_weight import dense
from bringup.graphs.ops.kv_cache import cached_rows, write_cache
from bringup.graphs.ops.linear import linear
from bringup.graphs.ops.rotary import rope
from bringup.graphs.ops.topk_keys import index_scores, top_keys

if TYPE_CHECKING:
    from torch import Tensor

    from bringup.graphs.core.step import Step


class Indexer(Module):
    """The lightning indexer (DeepSeek-V3.2 report §2.1): a few small heads, one key of D channels for each token.

    Its queries are a projection of the queries' latent, of rank q, or with `normed` of its layer norm; `growth`
    multiplies them, see `layers.query_growth`. The first channels are rotated, `interleaved` in GLM-5 and not in
    DeepSeek-V3.2, unless `rotates` is false. Scores are float32. DeepSeek's code multiplies queries and keys by a
    Hadamard matrix before it rounds them to float8; that does not change a product, and nothing is rounded here.
    """

    def __init__(
        self,
        m: int,
        q: int,
        *,
        heads: int,
        d: int,
        top_k: int,
        interleaved: bool = False,
        rotates: bool = True,
        normed: bool = False,
        growth: Module | None = None,
    ) -> None:
        super().__init__()
        self.d, self.top_k, self.interleaved, self.scale = d, top_k, interleaved, 1 / math.sqrt(d * heads)
        self.rotates, self.growth = rotates, growth
        self.q_input_norm = LayerNorm(q, 1e-6) if normed else None
        self.wq_b = Linear("out:(i d) in:q", i=heads, d=d, q=q, bias=False)
        self.wk = Linear("out:d in:m", d=d, m=m, bias=False)
        self.k_norm = LayerNorm(d, 1e-6)
        self.weights_proj = Linear("out:i in:m", i=heads, m=m, bias=False)
        self.keys = State("slot one d", one=1, d=d, dtype=current_options().cache_dtype)

    def forward(self, x_Nm: Tensor, q_Nq: Tensor, cos: Tensor, sin: Tensor, step: Step) -> Tensor:
        """The mask [N, L] of the L keys of its sequence that each query may attend to; undefined for later keys."""
        k_N1D = self._rotated(self.k_norm(self.wk(x_Nm))[:, None], cos, sin)
        write_cache(self.keys, step.slots, k_N1D)
        keys_BLD = cached_rows(self.keys, step)[:, :, 0]
        q_Nq = q_Nq if self.q_input_norm is None else self.q_input_norm(q_Nq)
        q_NHD = self.wq_b(q_Nq).unflatten(1, (-1, self.d))
        q_NHD = self._rotated(q_NHD if self.growth is None else self.growth(q_NHD, step), cos, sin)
        weights_NH = linear(x_Nm.float(), dense(self.weights_proj.weight).float())
        weights_NH = self.weights_proj.adapted(x_Nm, weights_NH) * self.scale
        return top_keys(index_scores(q_NHD, keys_BLD, weights_NH, step), step.positions, self.top_k)

    def _rotated(self, x_NHD: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        return rope(x_NHD, cos, sin, interleaved=self.interleaved) if self.rotates else x_NHD
