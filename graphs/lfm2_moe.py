"""LFM2-MoE: LFM2 with dense layers before MoE layers, sigmoid routing and a learned routing bias.

Names and routing: transformers' modeling_lfm2_moe.py. Legend of axes: graphs/lfm2.py; e experts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

from bringup.graphs.config.aliases import older_keys
from bringup.graphs.config.fields import Fields
from bringup.graphs.config.moe import RoutingConfig
from bringup.graphs.core.module import Module
from bringup.graphs.layers.mlp import GatedMLP
from bringup.graphs.layers.moe_shared import Mixture
from bringup.graphs.lfm2 import Lfm2, Lfm2Config, attention_layers, read_lfm2

EPS = 1e-6  # added to the sum of a token's weights


@dataclass(frozen=True, slots=True, kw_only=True)
class Lfm2MoeConfig(Lfm2Config):
    """`ffn` is the width of the MLP in the first `dense_layers` layers, `expert_ffn` that of each expert."""

    family: ClassVar[str] = "lfm2_moe"
    model_types: ClassVar[tuple[str, ...]] = ("lfm2_moe",)

    dense_layers: int
    expert_ffn: int
    routing: RoutingConfig

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        with_attention = attention_layers(fields, fields.layers("num_hidden_layers"))
        if fields.raw.get("layer_types") is None:
            message = f"config key `layer_types` {fields.state('layer_types')}; lfm2_moe needs a list of strings"
            fields.error("BU121", message, "layer_types", stops="")
        experts = fields.experts("num_experts", 32)
        common = read_lfm2(fields, with_attention, older_keys(fields, {"tie_word_embeddings": "tie_embedding"}))
        return cls(
            **common,
            dense_layers=fields.size("num_dense_layers", 2, minimum=0),
            expert_ffn=fields.size("moe_intermediate_size", 1792),
            routing=RoutingConfig(
                experts=experts,
                per_token=fields.size("num_experts_per_tok", 4, maximum=experts),
                groups=1,
                topk_groups=1,
                normalise=fields.get("norm_topk_prob", bool, True),
                factor=fields.get("routed_scaling_factor", float, 1.0),
                bias=fields.get("use_expert_bias", bool, True),
                eps=EPS,
            ),
        )


class Lfm2Moe(Lfm2):
    def mlp(self, config: Lfm2MoeConfig, index: int) -> Module:
        if index < config.dense_layers:
            return GatedMLP(config.hidden, config.ffn, config.activation)
        return Mixture(config.hidden, config.expert_ffn, config.activation, config.routing)
