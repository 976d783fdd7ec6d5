"""What Qwen3-Next and Qwen3.5 share: gated DeltaNet in most layers, in the others attention with an output gate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bringup.graphs.config.fields import Fields
from bringup.graphs.core.module import Module
from bringup.graphs.decoder import CausalLM, DecoderConfig, PreNormLayer, RecurrentLayer, read_common
from bringup.graphs.layers.attention import GroupedAttention
from bringup.graphs.layers.delta_net import GatedDeltaNet
from bringup.graphs.layers.mlp import GatedMLP
from bringup.graphs.layers.norm import OnePlusRMSNorm
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


@dataclass(frozen=True, slots=True, kw_only=True)
class HybridMoeConfig(HybridConfig):
    """The fields of `config.moe.read_shared_experts`."""

    sparse: tuple[bool, ...]
    expert_ffn: int
    shared_ffn: int
    num_experts: int
    experts_per_token: int
    normalise: bool


def read_hybrid(fields: Fields, layers: int, **common: Any) -> dict[str, Any]:
    """The fields of `HybridConfig`. `common` are settings of `read_common`."""
    g, h = fields.size("linear_num_key_heads", 16), fields.size("linear_num_value_heads", 32)
    if not fields.doubtful and h % g:
        message = f"{h} value heads cannot share {g} key heads evenly"
        fields.error("BU121", message, "linear_num_value_heads", stops="")
        h = g
    return dict(
        **read_common(fields, (None,) * layers, max_positions=32768, head_dim=256, partial=0.25, **common),
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


class Hybrid(CausalLM):
    """A family with experts defines `mlp`."""

    norm = OnePlusRMSNorm

    def layer(self, config: Any, index: int) -> Module:
        m, eps, mlp = config.hidden, config.eps, self.mlp(config, index)
        if config.recurrent[index]:
            g, h, k, v = config.key_heads, config.value_heads, config.key_dim, config.value_dim
            delta_net = GatedDeltaNet(m, g, h, k, v, taps=config.taps, eps=eps, activation=config.activation)
            return RecurrentLayer(m, eps, delta_net, mlp, norm=OnePlusRMSNorm)
        h, g, d, bias = config.num_heads, config.num_kv_heads, config.head_dim, config.attention_bias
        attention = GroupedAttention(
            m, h, g, d, bias=bias, out_bias=bias, qk_norm=eps, norm=OnePlusRMSNorm, output_gate=True
        )
        return PreNormLayer(m, eps, attention, mlp, norm=OnePlusRMSNorm)

    def mlp(self, config: Any, index: int) -> Module:
        return GatedMLP(config.hidden, config.ffn, config.activation)
