"""GPT-2: learned positions, LayerNorm, GELU, tied embeddings (Radford et al. 2019).

N tokens of the step · m hidden · h heads · d channels a head · t = 3 of q, k, v · f feed-forward
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

from bringup.graphs.config.aliases import read_alias
from bringup.graphs.config.fields import Fields
from bringup.graphs.config.hf_config import HFConfig
from bringup.graphs.core.graph import Graph
from bringup.graphs.core.module import Module
from bringup.graphs.core.step import Step
from bringup.graphs.layers.embedding import Embedding
from bringup.graphs.layers.kv_cache import KVCache
from bringup.graphs.layers.linear import Linear
from bringup.graphs.layers.norm import LayerNorm
from bringup.graphs.ops.activation import ACTIVATIONS
from bringup.graphs.ops.attention import attention

if TYPE_CHECKING:
    from torch import Tensor

ALIASES = {
    "hidden_size": "n_embd",
    "max_position_embeddings": "n_positions",
    "num_attention_heads": "n_head",
    "num_hidden_layers": "n_layer",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GPT2Config(HFConfig):
    family: ClassVar[str] = "gpt2"
    model_types: ClassVar[tuple[str, ...]] = ("gpt2",)

    vocab_size: int
    max_positions: int
    hidden: int
    num_layers: int
    num_heads: int
    ffn: int
    activation: str
    eps: float
    scale_by_head: bool
    scale_by_layer: bool
    tied_head: bool

    @property
    def head_dim(self) -> int:
        return self.hidden // self.num_heads or 1  # at least 1: both sizes may be stand-ins after an error

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        for alias, key in ALIASES.items():
            read_alias(fields, alias, key)
        hidden, heads = fields.size("n_embd"), fields.size("n_head")
        if not fields.doubtful and hidden % heads:
            fields.error("BU121", f"`n_embd` {hidden} is not a multiple of `n_head` {heads}", "n_head")
        fields.only("add_cross_attention", False)
        # computes these products in float32 whatever the dtype; bringup always does
        fields.only("reorder_and_upcast_attn", False, True)
        fields.only("n_special", 0)  # rows that GPT-1 adds to the embedding; transformers' GPT-2 does not read it
        positions = fields.size("n_positions")
        fields.only("n_ctx", positions)
        return cls(
            vocab_size=fields.size("vocab_size"),
            max_positions=positions,
            hidden=hidden,
            num_layers=fields.layers("n_layer"),
            num_heads=heads,
            ffn=fields.size("n_inner", 4 * hidden, null=4 * hidden),
            activation=fields.choice("activation_function", ACTIVATIONS, "gelu_new"),
            eps=fields.positive("layer_norm_epsilon", 1e-5),
            scale_by_head=fields.get("scale_attn_weights", bool, True),
            scale_by_layer=fields.get("scale_attn_by_inverse_layer_idx", bool, False),
            tied_head=fields.get("tie_word_embeddings", bool, True),
        )


class Attention(Module):
    def __init__(self, config: GPT2Config, layer: int) -> None:
        super().__init__()
        m, h, d = config.hidden, config.num_heads, config.head_dim
        self.head_dim = d
        self.scale = (1 / math.sqrt(d) if config.scale_by_head else 1.0) / (layer + 1 if config.scale_by_layer else 1)
        self.c_attn = Linear("out:(t h d) in:m", t=3, h=h, d=d, m=m)
        self.c_proj = Linear("out:m in:(h d)", m=m, h=h, d=d)
        self.cache = KVCache(h, d)

    def forward(self, x_Nm: Tensor, step: Step) -> Tensor:
        qkv_NTHD = self.c_attn(x_Nm).unflatten(1, (3, -1, self.head_dim))
        q_NHD, k_NHD, v_NHD = qkv_NTHD.unbind(1)
        keys, values = self.cache(step, k_NHD, v_NHD)
        return self.c_proj(attention(q_NHD, keys, values, step, self.scale).flatten(1))


class MLP(Module):
    def __init__(self, config: GPT2Config) -> None:
        super().__init__()
        self.activation = config.activation
        self.c_fc = Linear("out:f in:m", f=config.ffn, m=config.hidden)
        self.c_proj = Linear("out:m in:f", m=config.hidden, f=config.ffn)

    def forward(self, x_Nm: Tensor) -> Tensor:
        return self.c_proj(ACTIVATIONS[self.activation](self.c_fc(x_Nm)))


class Block(Module):
    def __init__(self, config: GPT2Config, layer: int) -> None:
        super().__init__()
        self.ln_1 = LayerNorm(config.hidden, config.eps)
        self.attn = Attention(config, layer)
        self.ln_2 = LayerNorm(config.hidden, config.eps)
        self.mlp = MLP(config)

    def forward(self, x_Nm: Tensor, step: Step) -> Tensor:
        x_Nm = x_Nm + self.attn(self.ln_1(x_Nm), step)
        return x_Nm + self.mlp(self.ln_2(x_Nm))


class Transformer(Module):
    def __init__(self, config: GPT2Config) -> None:
        super().__init__()
        self.wte = Embedding("vocab m", vocab=config.vocab_size, m=config.hidden)
        self.wpe = Embedding("position m", position=config.max_positions, m=config.hidden)
        self.h = [Block(config, layer) for layer in range(config.num_layers)]
        self.ln_f = LayerNorm(config.hidden, config.eps)


class GPT2(Graph):
    layer_path = "transformer.h"

    def __init__(self, config: GPT2Config, dtype: str = "float32") -> None:
        super().__init__(config, dtype)
        self.transformer = Transformer(config)
        self.lm_head = Linear("out:vocab in:m", vocab=config.vocab_size, m=config.hidden, bias=False)

    def prologue(self, step: Step) -> tuple[Tensor, ...]:
        return (self.transformer.wte(step.tokens) + self.transformer.wpe(step.positions),)

    def final(self, x_Nm: Tensor) -> Tensor:
        return self.transformer.ln_f(x_Nm)

    def epilogue(self, x_Rm: Tensor) -> Tensor:
        return self.lm_head(self.final(x_Rm))


def _published(n_layer: int, n_head: int, n_embd: int) -> dict[str, Any]:
    sizes = {"n_layer": n_layer, "n_head": n_head, "n_embd": n_embd, "n_positions": 1024, "vocab_size": 50257}
    names = {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2"}
    return names | {"activation_function": "gelu_new"} | sizes


# The four published sizes: layers, heads, hidden (table 2 of the paper; openai-community/gpt2* on the Hub).
SIZES: dict[str, dict[str, Any]] = {
    "gpt2": _published(12, 12, 768),
    "gpt2-medium": _published(24, 16, 1024),
    "gpt2-large": _published(36, 20, 1280),
    "gpt2-xl": _published(48, 25, 1600),
}
