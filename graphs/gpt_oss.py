"""gpt-oss: attention sinks, a sliding window in every other layer, MoE with biases and a clamped SwiGLU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

from bringup.graphs.config.aliases import read_alias
from bringup.graphs.config.fields import Fields
from bringup.graphs.config.windows import alternating_windows, sliding_window
from bringup.graphs.core.module import Module
from bringup.graphs.decoder import CausalLM, DecoderConfig, PreNormLayer, read_common
from bringup.graphs.layers.attention import GroupedAttention
from bringup.graphs.layers.linear import Linear
from bringup.graphs.layers.moe_experts import Experts
from bringup.graphs.ops.moe_routing import top_experts

if TYPE_CHECKING:
    from torch import Tensor

YARN = {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096, "truncate": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class GptOssConfig(DecoderConfig):
    family: ClassVar[str] = "gpt_oss"
    model_types: ClassVar[tuple[str, ...]] = ("gpt_oss",)

    attention_bias: bool
    num_experts: int
    experts_per_token: int
    swiglu_alpha: float
    swiglu_limit: float

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        read_alias(fields, "num_experts", "num_local_experts")
        experts = fields.experts("num_local_experts", 128)
        per_token = fields.size("num_experts_per_tok", 4, maximum=experts)
        layers = fields.layers("num_hidden_layers")
        windows = alternating_windows(fields, layers, sliding_window(fields, 128), full_every=2)
        common = read_common(
            fields, windows, max_positions=131072, kv_heads=8, head_dim=64, eps=1e-5, theta=150000.0, absent=YARN
        )
        fields.only("hidden_act", "silu")  # the activation in the clamped SwiGLU
        fields.only("experts_per_token", per_token)  # the published config has the number twice
        fields.only("initial_context_length", common["rope"].max_positions)
        return cls(
            **common,
            attention_bias=fields.get("attention_bias", bool, True),
            num_experts=experts,
            experts_per_token=per_token,
            swiglu_alpha=fields.get("swiglu_alpha", float, 1.702),
            swiglu_limit=fields.positive("swiglu_limit", 7.0),
        )


class ClampedExperts(Experts):
    """(up + 1) · gate · sigmoid(alpha · gate), both clamped: the SwiGLU of openai/gpt-oss, torch/model.py."""

    def __init__(self, config: GptOssConfig) -> None:
        super().__init__(config.num_experts, config.hidden, config.ffn, config.activation, bias=True)
        self.alpha, self.limit = config.swiglu_alpha, config.swiglu_limit

    def gated(self, gate: Tensor, up: Tensor) -> Tensor:
        gate, up = gate.clamp(max=self.limit), up.clamp(-self.limit, self.limit)
        return (up + 1) * gate * (self.alpha * gate).sigmoid()


class ClampedMLP(Module):
    """Routes each token to the experts with the highest scores, weighted by the softmax of those scores."""

    def __init__(self, config: GptOssConfig) -> None:
        super().__init__()
        self.per_token = config.experts_per_token
        self.router = Linear("out:e in:m", e=config.num_experts, m=config.hidden)
        self.experts = ClampedExperts(config)

    def forward(self, x_Nm: Tensor) -> Tensor:
        selected_NK, scores_NK = top_experts(self.router(x_Nm).float(), self.per_token)
        return self.experts(x_Nm, selected_NK, scores_NK.softmax(-1))


class GptOss(CausalLM):
    def layer(self, config: Any, index: int) -> PreNormLayer:
        m, h, g, d, bias = config.hidden, config.num_heads, config.num_kv_heads, config.head_dim, config.attention_bias
        attention = GroupedAttention(m, h, g, d, bias=bias, out_bias=bias, window=config.windows[index], sinks=True)
        return PreNormLayer(m, config.eps, attention, ClampedMLP(config))
