"""Qwen2 and Qwen2.5: Llama with biases on q, k and v, sliding windows in upper layers (Qwen2 report §2.2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

from bringup.graphs.config.fields import Fields
from bringup.graphs.config.windows import switched_window, window_of_layers
from bringup.graphs.decoder import CausalLM, DecoderConfig, PreNormLayer, read_common
from bringup.graphs.layers.attention import GroupedAttention
from bringup.graphs.layers.mlp import GatedMLP


@dataclass(frozen=True, slots=True, kw_only=True)
class Qwen2Config(DecoderConfig):
    family: ClassVar[str] = "qwen2"
    model_types: ClassVar[tuple[str, ...]] = ("qwen2",)

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        fields.only("use_mrope", False)  # of Qwen2-VL, whose positions have three coordinates
        return cls(
            **read_common(
                fields, qwen_windows(fields), max_positions=32768, kv_heads=32, nulls=("num_key_value_heads",)
            )
        )


def qwen_windows(fields: Fields) -> tuple[int | None, ...]:
    """The window of each layer: `layer_types`, or from layer `max_window_layers` on if `use_sliding_window`."""
    layers, window = fields.layers("num_hidden_layers"), switched_window(fields, 4096)
    first = fields.get("max_window_layers", int, 28)
    if (of_layers := window_of_layers(fields, layers, window)) is not None:
        return of_layers
    return tuple(window if index >= first else None for index in range(layers))


class Qwen2(CausalLM):
    def layer(self, config: Qwen2Config, index: int) -> PreNormLayer:
        m, h, g, d = config.hidden, config.num_heads, config.num_kv_heads, config.head_dim
        attention = GroupedAttention(m, h, g, d, bias=True, window=config.windows[index])
        return PreNormLayer(m, config.eps, attention, GatedMLP(m, config.ffn, config.activation))
