"""Gemma 2: norms around attention and MLP, capped scores and logits, a sliding window in every other layer.

Gemma Team 2024, section 2.
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
CAPS = {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemma2Config(DecoderConfig):
    family: ClassVar[str] = "gemma2"
    model_types: ClassVar[tuple[str, ...]] = ("gemma2",)

    attention_bias: bool

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        layers, window = fields.layers("num_hidden_layers"), sliding_window(fields, 4096)
        windows = alternating_windows(fields, layers, window, full_every=2)
        absent: dict[str, Any] = {"max_positions": 8192, "kv_heads": 4, "head_dim": 256, "query_scalar": 256}
        absent |= {"activation": "gelu_pytorch_tanh", "tied": True, "caps": CAPS}
        common = read_common(fields, windows, keys=KEYS, **absent)
        fields.only("hidden_act", common["activation"], None)  # published with `hidden_activation`, but not read
        fields.only("use_bidirectional_attention", None, False)
        bias = fields.get("attention_bias", bool, False)
        return cls(**common, embedding_scale=common["hidden"] ** 0.5, attention_bias=bias)


class Gemma2(CausalLM):
    norm = OnePlusRMSNorm

    def layer(self, config: Gemma2Config, index: int) -> PreNormLayer:
        m, h, g, d, bias = config.hidden, config.num_heads, config.num_kv_heads, config.head_dim, config.attention_bias
        scores: dict[str, Any] = {"scale": config.query_scale, "softcap": config.score_cap}
        attention = GroupedAttention(m, h, g, d, bias=bias, out_bias=bias, window=config.windows[index], **scores)
        mlp = GatedMLP(m, config.ffn, config.activation)
        return PreNormLayer(m, config.eps, attention, mlp, norm=self.norm, norms="around")
