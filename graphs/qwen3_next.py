"""Qwen3-Next: gated DeltaNet, in every fourth layer attention with an output gate, and MoE with a shared expert."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

from bringup.graphs.config.fields import MOST_EXPERTS, Fields
from bringup.graphs.config.moe import sparse_layers
from bringup.graphs.core.module import Module
from bringup.graphs.decoder import CausalLM, DecoderConfig, PreNormLayer, RecurrentLayer, read_common
from bringup.graphs.layers.attention import GroupedAttention
from bringup.graphs.layers.delta_net import GatedDeltaNet
from bringup.graphs.layers.norm import OnePlusRMSNorm
from bringup.graphs.qwen2_moe import mlp_of
from bringup.shown import shown

KINDS = ("linear_attention", "full_attention")


@dataclass(frozen=True, slots=True, kw_only=True)
class HybridConfig(DecoderConfig):
    """`recurrent` is whether each layer has a DeltaNet instead of attention.

    A DeltaNet has `key_heads` of `key_dim` channels, `value_heads` of `value_dim`, and a convolution of `taps` tokens.
    """

    attention_bias: bool
    recurrent: tuple[bool, ...]
    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    taps: int


def read_hybrid(fields: Fields, layers: int, *, value_heads: int, **common: Any) -> dict[str, Any]:
    """The fields of `HybridConfig`. `value_heads` is the family's default, `common` are settings of `read_common`."""
    g, h = fields.size("linear_num_key_heads", 16), fields.size("linear_num_value_heads", value_heads)
    if not fields.doubtful and h % g:
        message = f"{h} value heads cannot share {g} key heads evenly"
        fields.error("BU121", message, "linear_num_value_heads", stops="")
        h = g
    return dict(
        **read_common(fields, (None,) * layers, head_dim=256, partial=0.25, **common),
        attention_bias=fields.get("attention_bias", bool, False),
        recurrent=_recurrent(fields, layers),
        key_heads=g,
        value_heads=h,
        key_dim=fields.size("linear_key_head_dim", 128),
        value_dim=fields.size("linear_value_head_dim", 128),
        taps=fields.size("linear_conv_kernel_dim", 4),
    )


def _recurrent(fields: Fields, layers: int) -> tuple[bool, ...]:
    """By `layer_types`; by default every layer but each `full_attention_interval`-th."""
    types = fields.strings("layer_types")
    stride = fields.size("full_attention_interval", 4)
    by_stride = tuple((index + 1) % stride > 0 for index in range(layers))
    if types is None:
        return by_stride
    if len(types) != layers or not set(types) <= {*KINDS}:
        fields.error("BU122", f"`layer_types` is {shown(types)}; {layers} of linear_ or full_attention", "layer_types")
        return by_stride
    recurrent = tuple(kind == KINDS[0] for kind in types)
    if "full_attention_interval" in fields.raw and recurrent != by_stride:
        fields.overridden("full_attention_interval", stride, fields.path("layer_types"), types)
    return recurrent


@dataclass(frozen=True, slots=True, kw_only=True)
class Qwen3NextConfig(HybridConfig):
    """`ffn` is the width of the MLP in layers that are not `sparse`, `expert_ffn` that of each routed expert."""

    family: ClassVar[str] = "qwen3_next"
    model_types: ClassVar[tuple[str, ...]] = ("qwen3_next",)

    sparse: tuple[bool, ...]
    expert_ffn: int
    shared_ffn: int
    num_experts: int
    experts_per_token: int
    normalise: bool

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        layers, experts = fields.layers("num_hidden_layers"), fields.experts("num_experts", 512, minimum=0)
        fields.only("use_sliding_window", False)  # published, but transformers does not read it
        return cls(
            **read_hybrid(fields, layers, value_heads=32, max_positions=32768, kv_heads=2),
            sparse=sparse_layers(fields, layers, experts),
            expert_ffn=fields.size("moe_intermediate_size", 512),
            shared_ffn=fields.size("shared_expert_intermediate_size", 512),
            num_experts=experts,
            experts_per_token=fields.size("num_experts_per_tok", 10, maximum=experts or MOST_EXPERTS),
            normalise=fields.get("norm_topk_prob", bool, True),
        )


class Qwen3Next(CausalLM):
    norm = OnePlusRMSNorm

    def layer(self, config: Qwen3NextConfig, index: int) -> Module:
        m, eps, mlp = config.hidden, config.eps, mlp_of(config, config.sparse[index])
        if config.recurrent[index]:
            g, h, k, v = config.key_heads, config.value_heads, config.key_dim, config.value_dim
            delta_net = GatedDeltaNet(m, g, h, k, v, taps=config.taps, eps=eps, activation=config.activation)
            return RecurrentLayer(m, eps, delta_net, mlp, norm=OnePlusRMSNorm)
        h, g, d, bias = config.num_heads, config.num_kv_heads, config.head_dim, config.attention_bias
        attention = GroupedAttention(
            m, h, g, d, bias=bias, out_bias=bias, qk_norm=eps, norm=OnePlusRMSNorm, output_gate=True
        )
        return PreNormLayer(m, eps, attention, mlp, norm=OnePlusRMSNorm)
