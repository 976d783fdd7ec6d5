"""Mixtral 8x7B's shape as a model file: `bringup check tests/check/mixtral_graph.py --checkpoint DIR`.

N tokens of the step · m hidden · h query heads · g key heads · d channels a head · e experts · f their feed-forward ·
K experts that a token goes to
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Self

from bringup.adapters.expr import S, cat, stack
from bringup.adapters.rules import Adapter
from bringup.graphs.config import Fields, HFConfig
from bringup.graphs.graph import Graph, Step
from bringup.graphs.layers.embedding import Embedding
from bringup.graphs.layers.linear import Linear
from bringup.graphs.layers.norm import RMSNorm
from bringup.graphs.layers.rope import Rope, RopeConfig
from bringup.graphs.llama import Attention
from bringup.graphs.module import Module, Param
from bringup.graphs.ops.activation import silu
from bringup.graphs.registry import Family

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class MixtralConfig(HFConfig):
    family: ClassVar[str] = "mixtral"

    vocab_size: int
    max_positions: int
    hidden: int
    ffn: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    num_experts: int
    experts_per_token: int
    eps: float
    rope: RopeConfig
    window: int | None
    attention_bias: bool = False

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        fields.read |= {"router_aux_loss_coef", "router_jitter_noise", "output_router_logits"}  # training
        fields.only("hidden_act", "silu")
        fields.only("tie_word_embeddings", False)
        hidden, heads = fields.take("hidden_size", int), fields.take("num_attention_heads", int)
        return cls(
            vocab_size=fields.take("vocab_size", int),
            max_positions=fields.take("max_position_embeddings", int),
            hidden=hidden,
            ffn=fields.take("intermediate_size", int),
            num_layers=fields.take("num_hidden_layers", int),
            num_heads=heads,
            num_kv_heads=fields.take("num_key_value_heads", int, heads),
            head_dim=fields.take("head_dim", int, hidden // heads),
            num_experts=fields.take("num_local_experts", int),
            experts_per_token=fields.take("num_experts_per_tok", int),
            eps=fields.take("rms_norm_eps", float, 1e-5),
            rope=RopeConfig.from_hf(fields),
            window=fields.maybe("sliding_window", int),
        )


class Experts(Module):
    """A gated MLP for each expert; every token goes to the K experts that the gate likes most (Jiang et al. 2024)."""

    def __init__(self, config: MixtralConfig) -> None:
        super().__init__()
        m, f, e = config.hidden, config.ffn, config.num_experts
        self.per_token = config.experts_per_token
        self.gate = Linear("out:e in:m", e=e, m=m, bias=False)
        self.w13 = Param("e out:(gate:f | up:f) in:m", e=e, f=f, m=m)
        self.w2 = Param("e out:m in:f", e=e, f=f, m=m)

    def forward(self, x_Nm: Tensor) -> Tensor:
        import torch

        share_NK, which_NK = torch.softmax(self.gate(x_Nm).float(), dim=-1).topk(self.per_token, dim=-1)
        share_NK = share_NK / share_NK.sum(-1, keepdim=True)
        gate_NKf, up_NKf = torch.einsum("nkom,nm->nko", self.w13[which_NK], x_Nm).chunk(2, dim=-1)
        y_NKm = torch.einsum("nkmf,nkf->nkm", self.w2[which_NK], silu(gate_NKf) * up_NKf)
        return (y_NKm * share_NK[..., None].to(y_NKm.dtype)).sum(1)


class Layer(Module):
    def __init__(self, config: MixtralConfig) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden, config.eps)
        self.self_attn = Attention(config, config.window)  # type: ignore[arg-type]  the keys that it reads are Llama's
        self.post_attention_layernorm = RMSNorm(config.hidden, config.eps)
        self.experts = Experts(config)

    def forward(self, x_Nm: Tensor, cos: Tensor, sin: Tensor, step: Step) -> Tensor:
        x_Nm = x_Nm + self.self_attn(self.input_layernorm(x_Nm), cos, sin, step)
        return x_Nm + self.experts(self.post_attention_layernorm(x_Nm))


class Decoder(Module):
    def __init__(self, config: MixtralConfig) -> None:
        super().__init__()
        self.embed_tokens = Embedding("vocab m", vocab=config.vocab_size, m=config.hidden)
        self.layers = [Layer(config) for _ in range(config.num_layers)]
        self.norm = RMSNorm(config.hidden, config.eps)
        self.rotary = Rope(config.rope, config.head_dim)


class Mixtral(Graph):
    layer_path = "model.layers"

    def __init__(self, config: MixtralConfig, dtype: str = "float32") -> None:
        super().__init__(config, dtype)
        self.model = Decoder(config)
        self.lm_head = Linear("out:vocab in:m", vocab=config.vocab_size, m=config.hidden, bias=False)

    def prologue(self, step: Step) -> tuple[Tensor, ...]:
        return (self.model.embed_tokens(step.tokens), *self.model.rotary(step.positions))

    def epilogue(self, x_Rm: Tensor) -> Tensor:
        return self.lm_head(self.model.norm(x_Rm))


def adapter(config: MixtralConfig) -> Adapter:
    """As published: one tensor an expert and matrix."""
    mixtral = Adapter("mixtral", defaults=("out in", "vocab m"), prefix="model.")
    mixtral["model.{n:embed_tokens|norm}.weight"] = S("{n}.weight")
    mixtral["lm_head.weight"] = S("lm_head.weight")
    at = "layers.{L}."
    mixtral["model.layers.{L}.{n:input_layernorm|post_attention_layernorm}.weight"] = S(at + "{n}.weight")
    mixtral["model.layers.{L}.self_attn.{x:q|k|v|o}_proj.weight"] = S(at + "self_attn.{x}_proj.weight")
    moe = at + "block_sparse_moe."
    gate, up = S(moe + "experts.{E}.w1.weight", "f m"), S(moe + "experts.{E}.w3.weight", "f m")
    down = S(moe + "experts.{E}.w2.weight", "m f")
    mixtral["model.layers.{L}.experts.gate.weight"] = S(moe + "gate.weight")
    mixtral["model.layers.{L}.experts.w13"] = stack(cat(gate, up, axis="out"), over="E", n=config.num_experts)
    mixtral["model.layers.{L}.experts.w2"] = stack(down, over="E", n=config.num_experts)
    return mixtral


family = Family(
    name="mixtral", graph=Mixtral, config=MixtralConfig, adapter=adapter, architectures=("MixtralForCausalLM",)
)
