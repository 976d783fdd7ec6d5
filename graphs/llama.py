"""Llama 1 to 3.2, Mistral and SmolLM2: RMSNorm, RoPE, grouped-query attention, a gated MLP."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

from bringup.graphs.config.fields import Fields
from bringup.graphs.config.windows import sliding_window, window_of_layers
from bringup.graphs.decoder import CausalLM, DecoderConfig, PreNormLayer, read_common
from bringup.graphs.layers.attention import GroupedAttention
from bringup.graphs.layers.mlp import GatedMLP


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaConfig(DecoderConfig):
    family: ClassVar[str] = "llama"
    model_types: ClassVar[tuple[str, ...]] = ("llama", "mistral", "ministral")

    attention_bias: bool
    mlp_bias: bool

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        fields.only("rope_interleaved", False)  # nanotron's key, in SmolLM2: RoPE would rotate adjacent channels
        mistral = fields.raw.get("model_type") in ("mistral", "ministral")
        absent: dict[str, Any] = {"nulls": ("num_key_value_heads", "head_dim")}
        if mistral:
            absent = {"kv_heads": 8, "max_positions": 4096 * 32, "nulls": ("head_dim",)}
        return cls(
            **read_common(fields, _windows(fields, mistral), **absent),
            attention_bias=fields.get("attention_bias", bool, False),
            mlp_bias=fields.get("mlp_bias", bool, False),
        )


def _windows(fields: Fields, mistral: bool) -> tuple[int | None, ...]:
    """The sliding window of each layer, from `sliding_window` and, if present, `layer_types`."""
    layers = fields.layers("num_hidden_layers")
    if fields.raw.get("model_type") == "llama":  # transformers' Llama ignores both; its Mistral does not
        fields.only("layer_types", ["full_attention"] * layers, None)
        if fields.valid("layer_types") and "layer_types" not in fields.raw:
            fields.only("sliding_window", None)
        fields.read.add("sliding_window")
        return (None,) * layers
    window = sliding_window(fields, 4096 if mistral else None)
    if (of_layers := window_of_layers(fields, layers, window)) is not None:
        return of_layers
    if window is None and fields.raw.get("model_type") == "ministral":
        fields.error("BU121", "`sliding_window` is null, and all layers have one", "sliding_window", stops="")
    return (window,) * layers


class Llama(CausalLM):
    def layer(self, config: LlamaConfig, index: int) -> PreNormLayer:
        m, h, g, d, bias = config.hidden, config.num_heads, config.num_kv_heads, config.head_dim, config.attention_bias
        attention = GroupedAttention(m, h, g, d, bias=bias, out_bias=bias, window=config.windows[index])
        return PreNormLayer(m, config.eps, attention, GatedMLP(m, config.ffn, config.activation, bias=config.mlp_bias))
