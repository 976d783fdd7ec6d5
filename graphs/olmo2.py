"""OLMo 2: Llama with norms after attention and MLP, and norms over all queries and keys of a token.

OLMo Team 2025, section 3.3.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

from bringup.graphs.config.fields import Fields
from bringup.graphs.decoder import CausalLM, DecoderConfig, PreNormLayer, read_common
from bringup.graphs.layers.attention import GroupedAttention
from bringup.graphs.layers.mlp import GatedMLP
from bringup.graphs.layers.norm import Float32RMSNorm


@dataclass(frozen=True, slots=True, kw_only=True)
class Olmo2Config(DecoderConfig):
    family: ClassVar[str] = "olmo2"
    model_types: ClassVar[tuple[str, ...]] = ("olmo2",)

    attention_bias: bool

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        windows = (None,) * fields.layers("num_hidden_layers")
        return cls(
            **read_common(fields, windows, eps=1e-5, nulls=("num_key_value_heads",)),
            attention_bias=fields.get("attention_bias", bool, False),
        )


class Olmo2(CausalLM):
    norm = Float32RMSNorm

    def layer(self, config: Olmo2Config, index: int) -> PreNormLayer:
        m, h, g, d, bias = config.hidden, config.num_heads, config.num_kv_heads, config.head_dim, config.attention_bias
        attention = GroupedAttention(
            m, h, g, d, bias=bias, out_bias=bias, qk_norm=config.eps, norm=self.norm, norm_over="projection"
        )
        mlp = GatedMLP(m, config.ffn, config.activation)
        return PreNormLayer(m, config.eps, attention, mlp, norm=self.norm, norms="after")
