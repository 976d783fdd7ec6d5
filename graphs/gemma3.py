"""Gemma 3's text models: Gemma 2 with query and key norms, and a rope of its own in layers with a window.

Gemma Team 2025, section 2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

from bringup.graphs.config.fields import Fields
from bringup.graphs.config.windows import alternating_windows, sliding_window
from bringup.graphs.decoder import CausalLM, DecoderConfig, PreNormLayer, read_common
from bringup.graphs.layers.attention import GroupedAttention
from bringup.graphs.layers.mlp import GatedMLP
from bringup.graphs.layers.norm import OnePlusRMSNorm

KEYS = {"hidden_act": "hidden_activation"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemma3Config(DecoderConfig):
    family: ClassVar[str] = "gemma3"
    model_types: ClassVar[tuple[str, ...]] = ("gemma3_text",)

    attention_bias: bool

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        layers, window = fields.layers("num_hidden_layers"), sliding_window(fields, 4096)
        windows = alternating_windows(fields, layers, window, full_every=fields.size("sliding_window_pattern", 6))
        absent: dict[str, Any] = {"max_positions": 131072, "kv_heads": 4, "head_dim": 256, "query_scalar": 256}
        absent |= {"activation": "gelu_pytorch_tanh", "tied": True, "caps": {"final_logit_softcapping": None}}
        absent |= {"theta": 1e6, "local_theta": 1e4, "scaled_positions": True}
        common = read_common(fields, windows, keys=KEYS, **absent)
        fields.only("attn_logit_softcapping", None)  # transformers does not read it
        fields.only("use_bidirectional_attention", False, None)
        bias = fields.get("attention_bias", bool, False)
        return cls(**common, embedding_scale=common["hidden"] ** 0.5, attention_bias=bias)


class Gemma3(CausalLM):
    norm = OnePlusRMSNorm

    def layer(self, config: Gemma3Config, index: int) -> PreNormLayer:
        m, h, g, d, bias = config.hidden, config.num_heads, config.num_kv_heads, config.head_dim, config.attention_bias
        window, local = config.windows[index], int(config.windows[index] is not None)
        settings: dict[str, Any] = {"qk_norm": config.eps, "norm": self.norm, "scale": config.query_scale}
        attention = GroupedAttention(m, h, g, d, bias=bias, out_bias=bias, window=window, **settings)
        mlp = GatedMLP(m, config.ffn, config.activation)
        return PreNormLayer(m, config.eps, attention, mlp, norm=self.norm, norms="around", rope=local)
