"""Qwen3-MoE: Qwen3 with MoE layers, in some layers or all (Qwen3 report §2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

from bringup.graphs.config.aliases import read_alias
from bringup.graphs.config.fields import MOST_EXPERTS, Fields
from bringup.graphs.config.moe import sparse_layers
from bringup.graphs.config.windows import switched_window
from bringup.graphs.decoder import CausalLM, DecoderConfig, PreNormLayer, read_common
from bringup.graphs.layers.attention import GroupedAttention
from bringup.graphs.layers.mlp import GatedMLP
from bringup.graphs.layers.moe_softmax import SparseMLP


@dataclass(frozen=True, slots=True, kw_only=True)
class Qwen3MoeConfig(DecoderConfig):
    """`ffn` is the width of the MLP in layers that are not `sparse`, `expert_ffn` that of each expert."""

    family: ClassVar[str] = "qwen3_moe"
    model_types: ClassVar[tuple[str, ...]] = ("qwen3_moe",)

    attention_bias: bool
    sparse: tuple[bool, ...]
    expert_ffn: int
    num_experts: int
    experts_per_token: int
    normalise: bool

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        layers, window = fields.layers("num_hidden_layers"), _window(fields)
        read_alias(fields, "num_local_experts", "num_experts")  # transformers 5 writes the former
        experts = fields.experts("num_experts", 128, minimum=0)
        return cls(
            **read_common(fields, (window,) * layers, max_positions=32768, kv_heads=4),
            attention_bias=fields.get("attention_bias", bool, False),
            sparse=sparse_layers(fields, layers, experts),
            expert_ffn=fields.size("moe_intermediate_size", 768),
            num_experts=experts,
            experts_per_token=fields.size("num_experts_per_tok", 8, maximum=experts or MOST_EXPERTS),
            normalise=fields.get("norm_topk_prob", bool, False),
        )


def _window(fields: Fields) -> int | None:
    """The window of every layer: `sliding_window` if `use_sliding_window`, otherwise None."""
    window = switched_window(fields, 4096)
    if window is None:
        fields.get("max_window_layers", int, 0)
    else:
        fields.only("max_window_layers", 0)  # transformers' Qwen3-MoE ignores it; its Qwen3 does not
    return window


class Qwen3Moe(CausalLM):
    def layer(self, config: Qwen3MoeConfig, index: int) -> PreNormLayer:
        m, h, g, d, bias = config.hidden, config.num_heads, config.num_kv_heads, config.head_dim, config.attention_bias
        window = config.windows[index]
        attention = GroupedAttention(m, h, g, d, bias=bias, out_bias=bias, qk_norm=config.eps, window=window)
        return PreNormLayer(m, config.eps, attention, _mlp(config, config.sparse[index]))


def _mlp(config: Qwen3MoeConfig, sparse: bool) -> SparseMLP | GatedMLP:
    m, act = config.hidden, config.activation
    if not sparse:
        return GatedMLP(m, config.ffn, act)
    e, k = config.num_experts, config.experts_per_token
    return SparseMLP(e, m, config.expert_ffn, act, per_token=k, normalise=config.normalise)
