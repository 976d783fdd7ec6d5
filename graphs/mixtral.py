"""Mixtral 8x7B and 8x22B: Llama with MoE layers (Jiang et al. 2024)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

from bringup.graphs.config.aliases import read_alias
from bringup.graphs.config.fields import Fields
from bringup.graphs.config.windows import sliding_window
from bringup.graphs.decoder import CausalLM, DecoderConfig, PreNormLayer, read_common
from bringup.graphs.layers.attention import GroupedAttention
from bringup.graphs.layers.moe_softmax import SparseMLP


@dataclass(frozen=True, slots=True, kw_only=True)
class MixtralConfig(DecoderConfig):
    family: ClassVar[str] = "mixtral"
    model_types: ClassVar[tuple[str, ...]] = ("mixtral",)

    num_experts: int
    experts_per_token: int

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        windows = (sliding_window(fields),) * fields.layers("num_hidden_layers")
        read_alias(fields, "num_experts", "num_local_experts")
        experts = fields.experts("num_local_experts", 8)
        fields.optional("router_jitter_noise", float)  # of training, unlike in Phi-3.5-MoE
        return cls(
            **read_common(
                fields, windows, max_positions=4096 * 32, kv_heads=8, eps=1e-5, theta=1e6, nulls=("head_dim",)
            ),
            num_experts=experts,
            experts_per_token=fields.size("num_experts_per_tok", 2, maximum=experts),
        )


class Mixtral(CausalLM):
    def layer(self, config: MixtralConfig, index: int) -> PreNormLayer:
        m, h, g, d = config.hidden, config.num_heads, config.num_kv_heads, config.head_dim
        attention = GroupedAttention(m, h, g, d, window=config.windows[index])
        e, k = config.num_experts, config.experts_per_token
        mlp = SparseMLP(e, m, config.ffn, config.activation, per_token=k, normalise=True)
        return PreNormLayer(m, config.eps, attention, mlp)
