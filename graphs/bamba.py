"""Bamba: Mamba 2 in most layers, attention with partial RoPE in the others, a gated MLP in each.

Names and formulas: transformers' modeling_bamba.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

from bringup.graphs.config.fields import Fields
from bringup.graphs.config.mamba import MambaConfig
from bringup.graphs.core.module import Module
from bringup.graphs.decoder import CausalLM, DecoderConfig, PreNormLayer, RecurrentLayer, read_common
from bringup.graphs.layers.attention import GroupedAttention
from bringup.graphs.layers.mamba2 import Mamba2
from bringup.graphs.layers.mlp import GatedMLP
from bringup.shown import shown


@dataclass(frozen=True, slots=True, kw_only=True)
class BambaConfig(DecoderConfig):
    """`recurrent` is whether each layer has Mamba 2 instead of attention."""

    family: ClassVar[str] = "bamba"
    model_types: ClassVar[tuple[str, ...]] = ("bamba",)

    attention_bias: bool
    mlp_bias: bool
    recurrent: tuple[bool, ...]
    mamba: MambaConfig

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        layers, attention = fields.layers("num_hidden_layers"), fields.indices("attn_layer_indices")
        if not fields.doubtful and not {*attention} <= {*range(layers)}:
            message = f"`attn_layer_indices` is {shown(attention)}, but layers are 0 to {layers - 1}"
            fields.error("BU121", message, "attn_layer_indices", stops="")
        fields.only("partial_rotary_factor", 0.5)  # transformers reads it in `rope_parameters` only
        absent: dict[str, Any] = {"max_positions": 262_144, "ffn": 14_336, "eps": 1e-5, "kv_heads": 8, "partial": 0.5}
        common = read_common(fields, (None,) * layers, nulls=("num_key_value_heads",), **absent)
        # transformers does not read it; with another value, its code is not the model's
        fields.only("attn_rotary_emb", common["rope"].channels(common["head_dim"]))
        return cls(
            **common,
            attention_bias=fields.get("attention_bias", bool, False),
            mlp_bias=fields.get("mlp_bias", bool, False),
            recurrent=tuple(index not in attention for index in range(layers)),
            mamba=MambaConfig.from_fields(fields, common["hidden"]),
        )


class Bamba(CausalLM):
    def layer(self, config: BambaConfig, index: int) -> Module:
        m, eps = config.hidden, config.eps
        mlp = GatedMLP(m, config.ffn, config.activation, bias=config.mlp_bias)
        if config.recurrent[index]:
            return RecurrentLayer(m, eps, Mamba2(m, config.mamba, eps=eps, activation=config.activation), mlp)
        h, g, d, bias = config.num_heads, config.num_kv_heads, config.head_dim, config.attention_bias
        return PreNormLayer(m, eps, GroupedAttention(m, h, g, d, bias=bias, out_bias=bias), mlp)
