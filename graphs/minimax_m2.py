"""MiniMax-M2: partial RoPE, norms over all queries and keys of a token, MoE with sigmoid routing in every layer.

Names and formulas: transformers' modeling_minimax_m2.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

from bringup.graphs.config.aliases import read_alias
from bringup.graphs.config.fields import Fields
from bringup.graphs.config.moe import RoutingConfig
from bringup.graphs.decoder import CausalLM, DecoderConfig, PreNormLayer, read_common
from bringup.graphs.layers.attention import GroupedAttention
from bringup.graphs.layers.moe_shared import Mixture

# Keys of the published config.json for the layers of drafts, which a checkpoint may lack, and for other settings of
# the code of an earlier model.
UNREAD = frozenset({"use_mtp", "num_mtp_modules", "mtp_transformer_layers", "mlp_intermediate_size", "shared_moe_mode"})


@dataclass(frozen=True, slots=True, kw_only=True)
class MiniMaxM2Config(DecoderConfig):
    """`ffn` is the width of each expert."""

    family: ClassVar[str] = "minimax_m2"
    model_types: ClassVar[tuple[str, ...]] = ("minimax_m2",)

    routing: RoutingConfig

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        read_alias(fields, "num_experts", "num_local_experts")
        layers = fields.layers("num_hidden_layers")
        experts = fields.experts("num_local_experts", 256)
        d = fields.size("head_dim", 128)
        rotary = fields.size("rotary_dim", d, null=d)
        common = read_common(
            fields, (None,) * layers, max_positions=196608, kv_heads=8, head_dim=128, theta=5e6, partial=rotary / d
        )
        _check_published(fields, layers)
        return cls(
            **common,
            routing=RoutingConfig(
                experts=experts,
                per_token=fields.size("num_experts_per_tok", 8, maximum=experts),
                groups=1,
                topk_groups=1,
                normalise=True,
                factor=1.0,
                eps=0.0,
            ),
        )


def _check_published(fields: Fields, layers: int) -> None:
    """The keys of the published config.json that transformers does not read: they must state what it computes."""
    fields.only("attn_type_list", [1] * layers, None)
    fields.only("attention_bias", False)
    fields.only("sliding_window", None)
    fields.only("use_qk_norm", True)
    fields.only("qk_norm_type", "per_layer")
    fields.only("scoring_func", "sigmoid")
    fields.only("use_routing_bias", True)
    fields.only("norm_topk_prob", True)
    fields.only("shared_intermediate_size", 0)
    fields.optional("router_jitter_noise", float)  # in training only
    fields.read |= UNREAD


class MiniMaxM2(CausalLM):
    def layer(self, config: MiniMaxM2Config, index: int) -> PreNormLayer:
        m, h, g, d = config.hidden, config.num_heads, config.num_kv_heads, config.head_dim
        attention = GroupedAttention(m, h, g, d, qk_norm=config.eps, norm_over="projection")
        return PreNormLayer(m, config.eps, attention, Mixture(m, config.ffn, config.activation, config.routing))
