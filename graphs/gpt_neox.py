"""GPT-NeoX, Pythia: parallel attention and MLP, partial RoPE (Black et al. 2022; Biderman et al. 2023).

N tokens of the step · m hidden · h heads · d channels a head · f feed-forward
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Self

from bringup.graphs.config.fields import Fields
from bringup.graphs.config.hf_config import HFConfig
from bringup.graphs.config.rope import RopeConfig
from bringup.graphs.core.graph import Graph
from bringup.graphs.core.module import Module
from bringup.graphs.core.step import Step
from bringup.graphs.decoder import context_length
from bringup.graphs.layers.attention import GroupedAttention
from bringup.graphs.layers.embedding import Embedding
from bringup.graphs.layers.linear import Linear
from bringup.graphs.layers.mlp import MLP
from bringup.graphs.layers.norm import LayerNorm
from bringup.graphs.layers.rotary import rope_rows
from bringup.graphs.ops.activation import ACTIVATIONS

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class GPTNeoXConfig(HFConfig):
    family: ClassVar[str] = "gpt_neox"
    model_types: ClassVar[tuple[str, ...]] = ("gpt_neox",)

    vocab_size: int
    max_positions: int
    hidden: int
    ffn: int
    num_layers: int
    num_heads: int
    activation: str
    eps: float
    rope: RopeConfig
    attention_bias: bool
    parallel: bool
    tied_head: bool

    @property
    def head_dim(self) -> int:
        return self.hidden // self.num_heads

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        hidden, heads = fields.size("hidden_size"), fields.size("num_attention_heads")
        if not fields.doubtful and hidden % heads:
            fields.error("BU121", f"`hidden_size` {hidden} is not a multiple of {heads} heads", "num_attention_heads")
        stated = fields.size("max_position_embeddings", 2048)
        rope = RopeConfig.from_hf(
            fields,
            128 if fields.stopped else hidden // heads,  # a stand-in, so that the other keys are read as well
            stated,
            theta_key="rotary_emb_base",
            partial=0.25,
            partial_key="rotary_pct",
        )
        fields.only("rope_theta", rope.theta)  # a copy that some versions of transformers saved; no version reads it
        fields.only("partial_rotary_factor", rope.partial)
        return cls(
            vocab_size=fields.size("vocab_size"),
            max_positions=context_length(rope, stated),
            hidden=hidden,
            ffn=fields.size("intermediate_size"),
            num_layers=fields.layers("num_hidden_layers"),
            num_heads=heads,
            activation=fields.choice("hidden_act", ACTIVATIONS, "gelu"),
            eps=fields.positive("layer_norm_eps", 1e-5),
            rope=rope,
            attention_bias=fields.get("attention_bias", bool, True),
            parallel=fields.get("use_parallel_residual", bool, True),
            tied_head=fields.get("tie_word_embeddings", bool, False),
        )


class Layer(Module):
    """x + attention(norm(x)) + mlp(norm'(x)) (Wang & Komatsuzaki 2021); sequential if not `parallel`."""

    def __init__(self, config: GPTNeoXConfig) -> None:
        super().__init__()
        m, h, bias = config.hidden, config.num_heads, config.attention_bias
        self.parallel = config.parallel
        self.input_layernorm = LayerNorm(m, config.eps)
        self.attention = GroupedAttention(m, h, h, config.head_dim, bias=bias, out_bias=bias)
        self.post_attention_layernorm = LayerNorm(m, config.eps)
        self.mlp = MLP(m, config.ffn, config.activation)

    def forward(self, x_Nm: Tensor, cos: Tensor, sin: Tensor, step: Step) -> Tensor:
        mixed_Nm = x_Nm + self.attention(self.input_layernorm(x_Nm), cos, sin, step)
        return mixed_Nm + self.mlp(self.post_attention_layernorm(x_Nm if self.parallel else mixed_Nm))


class Decoder(Module):
    def __init__(self, config: GPTNeoXConfig) -> None:
        super().__init__()
        self.embed_in = Embedding("vocab m", vocab=config.vocab_size, m=config.hidden)
        self.layers = [Layer(config) for _ in range(config.num_layers)]
        self.final_layer_norm = LayerNorm(config.hidden, config.eps)
        self.rotary = rope_rows(config.rope, config.head_dim)


class GPTNeoX(Graph):
    layer_path = "gpt_neox.layers"

    def __init__(self, config: GPTNeoXConfig, dtype: str = "float32") -> None:
        super().__init__(config, dtype)
        self.gpt_neox = Decoder(config)
        self.embed_out = Linear("out:vocab in:m", vocab=config.vocab_size, m=config.hidden, bias=False)

    def prologue(self, step: Step) -> tuple[Tensor, ...]:
        return (self.gpt_neox.embed_in(step.tokens), *self.gpt_neox.rotary(step))

    def final(self, x_Nm: Tensor) -> Tensor:
        return self.gpt_neox.final_layer_norm(x_Nm)

    def epilogue(self, x_Rm: Tensor) -> Tensor:
        return self.embed_out(self.final(x_Rm))
