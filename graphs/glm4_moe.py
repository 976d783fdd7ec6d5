"""GLM-4.5: partial RoPE, optional query and key norms, dense layers before MoE layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

from bringup.graphs.config.aliases import read_alias
from bringup.graphs.config.fields import Fields
from bringup.graphs.config.moe import RoutingConfig, draft_layers
from bringup.graphs.decoder import CausalLM, DecoderConfig, PreNormLayer, read_common
from bringup.graphs.layers.attention import GroupedAttention
from bringup.graphs.layers.mlp import GatedMLP
from bringup.graphs.layers.moe_shared import SharedMixture


@dataclass(frozen=True, slots=True, kw_only=True)
class Glm4MoeConfig(DecoderConfig):
    """`draft_layers` are the layers of the checkpoint after the model's last: they predict further tokens."""

    family: ClassVar[str] = "glm4_moe"
    model_types: ClassVar[tuple[str, ...]] = ("glm4_moe",)

    attention_bias: bool
    qk_norm: bool
    dense_layers: int
    draft_layers: int
    expert_ffn: int
    shared_experts: int
    routing: RoutingConfig

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        read_alias(fields, "num_local_experts", "n_routed_experts")
        windows = (None,) * fields.layers("num_hidden_layers")
        dense = fields.get("first_k_dense_replace", int, 1)
        return cls(
            **read_common(fields, windows, max_positions=131072, kv_heads=8, eps=1e-5, partial=0.5),
            attention_bias=fields.get("attention_bias", bool, False),
            qk_norm=fields.get("use_qk_norm", bool, False),
            dense_layers=dense,
            draft_layers=draft_layers(fields),
            expert_ffn=fields.size("moe_intermediate_size", 1408),
            shared_experts=fields.size("n_shared_experts", 1),
            routing=RoutingConfig.from_fields(
                fields, used=dense < len(windows), experts=128, per_token=8, groups=1, topk_groups=1, factor=1.0
            ),
        )


class Glm4Moe(CausalLM):
    def layer(self, config: Glm4MoeConfig, index: int) -> PreNormLayer:
        m, h, g, d = config.hidden, config.num_heads, config.num_kv_heads, config.head_dim
        qk_norm = config.eps if config.qk_norm else None
        attention = GroupedAttention(m, h, g, d, bias=config.attention_bias, qk_norm=qk_norm)
        if index < config.dense_layers:
            mlp = GatedMLP(m, config.ffn, config.activation)
        else:
            mlp = SharedMixture(m, config.expert_ffn, config.shared_experts, config.activation, config.routing)
        return PreNormLayer(m, config.eps, attention, mlp)
