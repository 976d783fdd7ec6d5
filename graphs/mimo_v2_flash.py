"""MiMo-V2-Flash: values narrower than keys, attention sinks and twice the key heads in layers with a window, and MoE.

Names and formulas: transformers' modeling_mimo_v2_flash.py. The published config.json has other keys than transformers,
which ignores those and uses its defaults; `_check_published` checks that they state the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

from bringup.graphs.config.aliases import read_alias
from bringup.graphs.config.fields import Fields
from bringup.graphs.config.moe import RoutingConfig, listed_layers
from bringup.graphs.config.windows import sliding_window, window_of_layers
from bringup.graphs.decoder import CausalLM, DecoderConfig, PreNormLayer, read_common
from bringup.graphs.layers.attention import GroupedAttention
from bringup.graphs.layers.mlp import GatedMLP
from bringup.graphs.layers.moe_shared import Float32SigmoidRouter, Mixture

FULL_EVERY = 6
ROPES = {"rope_theta": 5e6, "swa_rope_theta": 1e4, "partial_rotary_factor": 0.334}


@dataclass(frozen=True, slots=True, kw_only=True)
class MiMoV2FlashConfig(DecoderConfig):
    """`num_kv_heads` is that of layers with full attention; those with a window have `local_kv_heads`.

    A value has `value_dim` channels, and is multiplied by `value_scale`. `sparse`: the layers with experts.
    """

    family: ClassVar[str] = "mimo_v2_flash"
    model_types: ClassVar[tuple[str, ...]] = ("mimo_v2_flash",)

    attention_bias: bool
    local_kv_heads: int
    value_dim: int
    value_scale: float
    sparse: tuple[bool, ...]
    expert_ffn: int
    routing: RoutingConfig

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        read_alias(fields, "num_local_experts", "n_routed_experts")
        layers, window = fields.layers("num_hidden_layers"), _window(fields)
        windows = window_of_layers(fields, layers, window)
        if windows is None:
            windows = tuple(window if index and (index + 1) % FULL_EVERY else None for index in range(layers))
        sparse = listed_layers(fields, layers) or tuple(index > 0 for index in range(layers))
        absent: dict[str, Any] = {"max_positions": 131072, "kv_heads": 4, "head_dim": 192, "ffn": 16384, "eps": 1e-5}
        absent |= {"theta": ROPES["rope_theta"], "partial": ROPES["partial_rotary_factor"]}
        absent |= {"local_theta": ROPES["swa_rope_theta"], "local_theta_key": "swa_rope_theta"}
        common = read_common(fields, windows, **absent)
        heads = 2 * common["num_kv_heads"]
        if not fields.doubtful and common["num_heads"] % heads and any(windows):
            message = (
                f"{common['num_heads']} heads cannot share {heads} key heads, those of layers with a window, evenly"
            )
            fields.error("BU121", message, "num_key_value_heads", stops="")
        config = cls(
            **common,
            attention_bias=fields.get("attention_bias", bool, False),
            local_kv_heads=heads,
            value_dim=fields.size("v_head_dim", 128),
            value_scale=fields.get("attention_value_scale", float, 0.707, null=1.0),
            sparse=sparse,
            expert_ffn=fields.size("moe_intermediate_size", 2048),
            routing=RoutingConfig.from_fields(
                fields, used=any(sparse), experts=256, per_token=8, groups=1, topk_groups=1, factor=1.0, factor_null=1.0
            ),
        )
        _check_published(fields, config)
        return config


def _window(fields: Fields) -> int | None:
    """Tokens that a query attends to, with its own: one more than `sliding_window_size`, or `sliding_window`."""
    window, size = sliding_window(fields, 129), fields.optional("sliding_window_size", int)
    if size is None:
        return window
    if size < 0:
        fields.error("BU121", f"`sliding_window_size` is {size}; 0 or more", "sliding_window_size", stops="")
    elif fields.raw.get("sliding_window") is not None and window not in (size, size + 1):
        fields.overridden("sliding_window", window, fields.path("sliding_window_size"), size)
    return max(size, 0) + 1


def _check_published(fields: Fields, config: MiMoV2FlashConfig) -> None:
    """The keys of the published config.json that transformers does not read: they must state what it computes."""
    fields.only("hybrid_layer_pattern", [int(window is not None) for window in config.windows], None)
    fields.only("moe_layer_freq", [int(sparse) for sparse in config.sparse], None)
    fields.only("swa_num_attention_heads", config.num_heads)
    fields.only("swa_num_key_value_heads", config.local_kv_heads)
    fields.only("swa_head_dim", config.head_dim)
    fields.only("swa_v_head_dim", config.value_dim)
    fields.only("add_swa_attention_sink_bias", True)
    fields.only("add_full_attention_sink_bias", False)
    fields.only("layernorm_epsilon", config.eps)
    fields.only("n_shared_experts", None, 0)
    fields.only("scoring_func", "sigmoid")
    fields.only("topk_method", "noaux_tc")
    fields.only("rope_scaling", None)
    fields.only("hybrid_block_size", None)
    fields.optional("attention_chunk_size", int)  # neither transformers nor llama.cpp's converter reads it
    if fields.raw.get("rope_parameters") is None:
        for key, value in ROPES.items():
            fields.only(key, value)


class MiMoV2Flash(CausalLM):
    def layer(self, config: MiMoV2FlashConfig, index: int) -> PreNormLayer:
        m, d, window = config.hidden, config.head_dim, config.windows[index]
        local = window is not None
        attention = GroupedAttention(
            m, config.num_heads, config.local_kv_heads if local else config.num_kv_heads, d,
            bias=config.attention_bias, values=config.value_dim, value_scale=config.value_scale,
            window=window, sinks=local,
        )  # fmt: skip
        if config.sparse[index]:
            mlp = Mixture(m, config.expert_ffn, config.activation, config.routing, router=Float32SigmoidRouter)
        else:
            mlp = GatedMLP(m, config.ffn, config.activation)
        return PreNormLayer(m, config.eps, attention, mlp, rope=int(local))
