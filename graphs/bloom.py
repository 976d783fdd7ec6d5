"""BLOOM: ALiBi attention biases, a LayerNorm after the embedding (Scao et al. 2022).

N tokens of the step · m hidden · h heads · d channels a head · f feed-forward = 4 m
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Self

from bringup.graphs.config.aliases import read_alias
from bringup.graphs.config.fields import Fields
from bringup.graphs.config.hf_config import HFConfig
from bringup.graphs.core.graph import Graph
from bringup.graphs.core.module import Const, Module
from bringup.graphs.core.step import Step
from bringup.graphs.layers.embedding import Embedding
from bringup.graphs.layers.kv_cache import KVCache
from bringup.graphs.layers.linear import Linear
from bringup.graphs.layers.mlp import MLP
from bringup.graphs.layers.norm import LayerNorm
from bringup.graphs.ops.attention import attention

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class BloomConfig(HFConfig):
    """`max_positions` is the length of the training sequences: ALiBi itself has no limit.

    `out_bias`: the output projections of attention and MLP have biases.
    `residual_from_norm`: the residual is the output of the norm, not its input.
    """

    family: ClassVar[str] = "bloom"
    model_types: ClassVar[tuple[str, ...]] = ("bloom",)

    vocab_size: int
    max_positions: int
    hidden: int
    num_layers: int
    num_heads: int
    eps: float
    residual_from_norm: bool
    out_bias: bool
    tied_head: bool

    @property
    def head_dim(self) -> int:
        return self.hidden // self.num_heads or 1  # at least 1: both sizes may be stand-ins after an error

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        read_alias(fields, "num_attention_heads", "n_head")
        read_alias(fields, "num_hidden_layers", "n_layer")
        fields.read.add("n_embed")
        if fields.raw.get("n_embed") is not None:  # transformers ignores null
            read_alias(fields, "n_embed", "hidden_size")
        hidden, heads = fields.size("hidden_size"), fields.size("n_head")
        if not fields.doubtful and hidden % heads:
            fields.error("BU121", f"hidden size {hidden} is not a multiple of {heads} heads", "n_head")
        fields.only("n_inner", None, 4 * hidden)
        for kernel in ("attention_softmax_in_fp32", "masked_softmax_fusion", "bias_dropout_fusion", "skip_bias_add"):
            fields.only(kernel, True, False)  # chooses Megatron's kernels: does not affect the result
        fields.only("skip_bias_add_qkv", False)
        fields.optional("offset_alibi", int)  # a constant added to all scores of a row: softmax cancels it
        return cls(
            vocab_size=fields.size("vocab_size"),
            max_positions=fields.size("seq_length", 2048),
            hidden=hidden,
            num_layers=fields.layers("n_layer"),
            num_heads=heads,
            eps=fields.positive("layer_norm_epsilon", 1e-5),
            out_bias=not _summed_by_parts(fields, hidden),
            residual_from_norm=fields.get("apply_residual_connection_post_layernorm", bool, False),
            tied_head=fields.get("tie_word_embeddings", bool, True),
        )


def _summed_by_parts(fields: Fields, hidden: int) -> bool:
    """Whether `slow_but_exact` sums products of `pretraining_tp` slices: transformers 5.23 then adds no bias.

    If all slices have the same size, their sum is the complete product. Reports BU121 if they do not.
    """
    parts = fields.size("pretraining_tp", 1)
    if not fields.get("slow_but_exact", bool, False) or parts == 1:
        return False
    if not fields.doubtful and hidden % parts:
        message = f"`slow_but_exact` cuts the hidden size {hidden} into `pretraining_tp` {parts} slices of one size"
        fields.error("BU121", message, "pretraining_tp")
    return True


def alibi_slopes(heads: int) -> np.ndarray:
    """The slope of each head, float32 [heads] (Press et al. 2021; their code for other numbers than powers of two).

    For n = 2^k heads, 2^(-8 i / n) for i = 1 … n. Heads beyond the largest power of two use every other slope of
    twice as many heads.
    """
    import numpy as np

    n = 1 << heads.bit_length() - 1
    slopes = [2 ** (-8 * i / n) for i in range(1, n + 1)]
    slopes += [2 ** (-4 * i / n) for i in range(1, 2 * (heads - n), 2)]
    return np.array(slopes, np.float32)


class Attention(Module):
    def __init__(self, config: BloomConfig) -> None:
        super().__init__()
        m, h, d = config.hidden, config.num_heads, config.head_dim
        self.head_dim, self.scale = d, 1 / math.sqrt(d)
        self.q_proj = Linear("out:(h d) in:m", h=h, d=d, m=m)
        self.k_proj = Linear("out:(h d) in:m", h=h, d=d, m=m)
        self.v_proj = Linear("out:(h d) in:m", h=h, d=d, m=m)
        self.dense = Linear("out:m in:(h d)", m=m, h=h, d=d, bias=config.out_bias)
        self.slopes = Const("h", lambda _: alibi_slopes(h), h=h)
        self.cache = KVCache(h, d)

    def forward(self, x_Nm: Tensor, residual_Nm: Tensor, step: Step) -> Tensor:
        q_NHD, k_NHD, v_NHD = (
            project(x_Nm).unflatten(1, (-1, self.head_dim)) for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        keys, values = self.cache(step, k_NHD, v_NHD)
        mixed = attention(q_NHD, keys, values, step, self.scale, slopes_H=self.slopes)
        return residual_Nm + self.dense(mixed.flatten(1))


class ResidualMLP(MLP):
    def forward(self, x_Nm: Tensor, residual_Nm: Tensor) -> Tensor:  # type: ignore[override]  it takes one more
        return residual_Nm + super().forward(x_Nm)


class Block(Module):
    """A pre-norm layer; attention and MLP add the residual themselves, as in transformers.

    `residual_from_norm`: the residual is the output of the norm, not its input.
    """

    def __init__(self, config: BloomConfig) -> None:
        super().__init__()
        self.residual_from_norm = config.residual_from_norm
        self.input_layernorm = LayerNorm(config.hidden, config.eps)
        self.self_attention = Attention(config)
        self.post_attention_layernorm = LayerNorm(config.hidden, config.eps)
        self.mlp = ResidualMLP(config.hidden, 4 * config.hidden, "gelu_new", out_bias=config.out_bias)

    def forward(self, x_Nm: Tensor, step: Step) -> Tensor:
        normed = self.input_layernorm(x_Nm)
        x_Nm = self.self_attention(normed, normed if self.residual_from_norm else x_Nm, step)
        normed = self.post_attention_layernorm(x_Nm)
        return self.mlp(normed, normed if self.residual_from_norm else x_Nm)


class Transformer(Module):
    def __init__(self, config: BloomConfig) -> None:
        super().__init__()
        self.word_embeddings = Embedding("vocab m", vocab=config.vocab_size, m=config.hidden)
        self.word_embeddings_layernorm = LayerNorm(config.hidden, config.eps)
        self.h = [Block(config) for _ in range(config.num_layers)]
        self.ln_f = LayerNorm(config.hidden, config.eps)


class Bloom(Graph):
    layer_path = "transformer.h"

    def __init__(self, config: BloomConfig, dtype: str = "float32") -> None:
        super().__init__(config, dtype)
        self.transformer = Transformer(config)
        self.lm_head = Linear("out:vocab in:m", vocab=config.vocab_size, m=config.hidden, bias=False)

    def prologue(self, step: Step) -> tuple[Tensor, ...]:
        return (self.transformer.word_embeddings_layernorm(self.transformer.word_embeddings(step.tokens)),)

    def final(self, x_Nm: Tensor) -> Tensor:
        return self.transformer.ln_f(x_Nm)

    def epilogue(self, x_Rm: Tensor) -> Tensor:
        return self.lm_head(self.final(x_Rm))
