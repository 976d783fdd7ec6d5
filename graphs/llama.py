"""Llama 1 to 3.2, Mistral and SmolLM2: the pre-norm decoder with rope, grouped-query attention and a gated MLP.

N tokens of the step · m hidden · h query heads · g key heads · d channels a head · f feed-forward
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Self

from bringup.graphs.config import Fields, HFConfig
from bringup.graphs.graph import Graph, Step
from bringup.graphs.layers.cache import KVCache
from bringup.graphs.layers.embedding import Embedding
from bringup.graphs.layers.linear import Linear
from bringup.graphs.layers.norm import RMSNorm
from bringup.graphs.layers.rope import Rope, RopeConfig
from bringup.graphs.module import Module
from bringup.graphs.ops.activation import ACTIVATIONS
from bringup.graphs.ops.attention import attention
from bringup.graphs.ops.rope import rope
from bringup.shown import shown

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaConfig(HFConfig):
    family: ClassVar[str] = "llama"

    vocab_size: int
    max_positions: int
    hidden: int
    ffn: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    activation: str
    eps: float
    rope: RopeConfig
    attention_bias: bool
    mlp_bias: bool
    tied_head: bool
    windows: tuple[int | None, ...]  # one a layer; None sees everything

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        hidden, heads = fields.size("hidden_size"), fields.size("num_attention_heads")
        kv_heads = fields.size("num_key_value_heads", heads)
        if not fields.findings and heads % kv_heads:
            fields.error("BU121", f"{heads} heads cannot share {kv_heads} key heads evenly", "num_key_value_heads")
        head_dim = fields.size("head_dim", 2 if fields.findings else hidden // heads)
        if not fields.findings and head_dim % 2:
            fields.error("BU121", f"rope turns channels in pairs, and `head_dim` is {head_dim}", "head_dim")
        return cls(
            vocab_size=fields.size("vocab_size"),
            max_positions=fields.size("max_position_embeddings", 2048),
            hidden=hidden,
            ffn=fields.size("intermediate_size"),
            num_heads=heads,
            num_kv_heads=kv_heads,
            head_dim=head_dim,
            activation=fields.choice("hidden_act", ACTIVATIONS, "silu"),
            eps=fields.positive("rms_norm_eps", 1e-6),
            rope=RopeConfig.from_hf(fields),
            attention_bias=fields.take("attention_bias", bool, False),
            mlp_bias=fields.take("mlp_bias", bool, False),
            tied_head=fields.take("tie_word_embeddings", bool, False),
            windows=_windows(fields),
        )


def _windows(fields: Fields) -> tuple[int | None, ...]:
    """The sliding window of each layer, from `sliding_window` and, where there is one, `layer_types`."""
    layers, window = fields.layers("num_hidden_layers"), fields.maybe("sliding_window", int)
    if window is not None and window < 1:
        fields.error("BU121", f"`sliding_window` is {window}; a window holds at least 1 token", "sliding_window")
    types = fields.words("layer_types")
    if types is None and fields.raw.get("model_type") == "llama":
        fields.only("sliding_window", None)  # transformers' Llama ignores it where its Mistral obeys it
        return (None,) * layers
    if types is None:
        return (window,) * layers
    if len(types) != layers or not set(types) <= {"full_attention", "sliding_attention"}:
        fields.error("BU122", f"`layer_types` is {shown(types)}; {layers} of full_ or sliding_attention", "layer_types")
        return (window,) * layers
    if "sliding_attention" in types and window is None:
        fields.error("BU121", "`layer_types` has sliding_attention and `sliding_window` is missing", "sliding_window")
    return tuple(window if kind == "sliding_attention" else None for kind in types)


class Attention(Module):
    def __init__(self, config: LlamaConfig, window: int | None) -> None:
        super().__init__()
        m, h, g, d, bias = (
            config.hidden,
            config.num_heads,
            config.num_kv_heads,
            config.head_dim,
            config.attention_bias,
        )
        self.head_dim, self.window, self.scale = d, window, 1 / math.sqrt(d)
        self.q_proj = Linear("out:(h d) in:m", h=h, d=d, m=m, bias=bias)
        self.k_proj = Linear("out:(g d) in:m", g=g, d=d, m=m, bias=bias)
        self.v_proj = Linear("out:(g d) in:m", g=g, d=d, m=m, bias=bias)
        self.o_proj = Linear("out:m in:(h d)", h=h, d=d, m=m, bias=bias)
        self.cache = KVCache(g, d)

    def forward(self, x_Nm: Tensor, cos: Tensor, sin: Tensor, step: Step) -> Tensor:
        q_NHD = self.q_proj(x_Nm).unflatten(1, (-1, self.head_dim))
        k_NGD = self.k_proj(x_Nm).unflatten(1, (-1, self.head_dim))
        v_NGD = self.v_proj(x_Nm).unflatten(1, (-1, self.head_dim))
        keys, values = self.cache(step.slots, rope(k_NGD, cos, sin), v_NGD)
        mixed = attention(rope(q_NHD, cos, sin), keys, values, step, self.scale, self.window)
        return self.o_proj(mixed.flatten(1))


class MLP(Module):
    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        m, f, bias = config.hidden, config.ffn, config.mlp_bias
        self.activation = config.activation
        self.gate_proj = Linear("out:f in:m", f=f, m=m, bias=bias)
        self.up_proj = Linear("out:f in:m", f=f, m=m, bias=bias)
        self.down_proj = Linear("out:m in:f", m=m, f=f, bias=bias)

    def forward(self, x_Nm: Tensor) -> Tensor:
        return self.down_proj(ACTIVATIONS[self.activation](self.gate_proj(x_Nm)) * self.up_proj(x_Nm))


class Layer(Module):
    def __init__(self, config: LlamaConfig, window: int | None) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden, config.eps)
        self.self_attn = Attention(config, window)
        self.post_attention_layernorm = RMSNorm(config.hidden, config.eps)
        self.mlp = MLP(config)

    def forward(self, x_Nm: Tensor, cos: Tensor, sin: Tensor, step: Step) -> Tensor:
        x_Nm = x_Nm + self.self_attn(self.input_layernorm(x_Nm), cos, sin, step)
        return x_Nm + self.mlp(self.post_attention_layernorm(x_Nm))


class Decoder(Module):
    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.embed_tokens = Embedding("vocab m", vocab=config.vocab_size, m=config.hidden)
        self.layers = [Layer(config, window) for window in config.windows]
        self.norm = RMSNorm(config.hidden, config.eps)
        self.rotary = Rope(config.rope, config.head_dim)


class Llama(Graph):
    layer_path = "model.layers"

    def __init__(self, config: LlamaConfig, dtype: str = "float32") -> None:
        super().__init__(config, dtype)
        self.model = Decoder(config)
        self.lm_head = Linear("out:vocab in:m", vocab=config.vocab_size, m=config.hidden, bias=False)

    def prologue(self, step: Step) -> tuple[Tensor, ...]:
        return (self.model.embed_tokens(step.tokens), *self.model.rotary(step.positions))

    def epilogue(self, x_Rm: Tensor) -> Tensor:
        return self.lm_head(self.model.norm(x_Rm))
