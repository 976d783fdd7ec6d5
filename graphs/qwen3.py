"""Qwen3: Llama with query and key norms, sliding windows in upper layers (Qwen3 report §2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

from bringup.graphs.config.fields import Fields
from bringup.graphs.decoder import CausalLM, DecoderConfig, PreNormLayer, read_common
from bringup.graphs.layers.attention import GroupedAttention
from bringup.graphs.layers.mlp import GatedMLP
from bringup.graphs.qwen2 import qwen_windows


@dataclass(frozen=True, slots=True, kw_only=True)
class Qwen3Config(DecoderConfig):
    family: ClassVar[str] = "qwen3"
    model_types: ClassVar[tuple[str, ...]] = ("qwen3",)

    attention_bias: bool

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        return cls(
            **read_common(
                fields,
                qwen_windows(fields),
                max_positions=32768,
                kv_heads=32,
                head_dim=128,
                nulls=("num_key_value_heads",),
            ),
            attention_bias=fields.get("attention_bias", bool, False),
        )


class Qwen3(CausalLM):
    def layer(self, config: Qwen3Config, index: int) -> PreNormLayer:
        m, h, g, d, bias = config.hidden, config.num_heads, config.num_kv_heads, config.head_dim, config.attention_bias
        window = config.windows[index]
        attention = GroupedAttention(m, h, g, d, bias=bias, out_bias=bias, qk_norm=config.eps, window=window)
        return PreNormLayer(m, config.eps, attention, GatedMLP(m, config.ffn, config.activation))
