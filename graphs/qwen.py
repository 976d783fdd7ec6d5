"""Qwen 1: Llama with biases on q, k and v (Bai et al. 2023, §2.3; modeling_qwen.py of Qwen/Qwen-7B)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from bringup.graphs.config.fields import Fields
from bringup.graphs.decoder import CausalLM, DecoderConfig, PreNormLayer, read_common
from bringup.graphs.layers.attention import GroupedAttention
from bringup.graphs.layers.mlp import GatedMLP

KEYS = {"head_dim": "kv_channels", "rms_norm_eps": "layer_norm_epsilon"}
# Other keys of the published code, with the values that this graph implements; the first is its default.
SWITCHES: dict[str, tuple[Any, ...]] = {
    "scale_attn_weights": (True,),
    "use_cache_quantization": (False,),
    "use_cache_kernel": (False, True),
    "use_flash_attn": ("auto", False, True),
    "softmax_in_fp32": (False, True),
    "bf16": (False, True),
    "fp16": (False, True),
    "fp32": (False, True),
    "onnx_safe": (None,),
    # keys that it does not read, and `read_common` does
    "hidden_act": ("silu",),
    "rope_scaling": (None,),
    "rope_parameters": (None,),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class QWenConfig(DecoderConfig):
    """`bias` is that of all projections other than q, k and v, which always have one."""

    family: ClassVar[str] = "qwen"
    model_types: ClassVar[tuple[str, ...]] = ("qwen",)

    bias: bool

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        for key, values in SWITCHES.items():
            fields.only(key, *values)
        fields.only("num_key_value_heads", fields.size("num_attention_heads"))
        rope: dict[str, Any] = {"theta_key": "rotary_emb_base", "partial": 1.0, "partial_key": "rotary_pct"}
        windows = (None,) * fields.layers("num_hidden_layers")
        config = cls(
            **read_common(
                fields,
                windows,
                max_positions=8192,
                head_dim=128,
                keys=KEYS,
                context_keys=("max_sequence_length",),
                **rope,
            ),
            bias=not fields.get("no_bias", bool, True),
        )
        if not fields.doubtful and (width := config.num_heads * config.head_dim) != config.hidden:
            fields.error(
                "BU121", f"the heads' channels are {width}, and `hidden_size` is {config.hidden}", "kv_channels"
            )
        if config.rope.channels(config.head_dim) % 2:  # not proven: transformers has no code for the family
            message = f"RoPE rotates pairs of channels: an odd number of `kv_channels` {config.head_dim} would rotate"
            fields.error("BU121", message, "rotary_pct")
        longest = _longest(fields, config.max_positions)
        return replace(
            config, ffn=max(1, config.ffn // 2), max_positions=longest
        )  # the published width is the sum of gate's and up's


def _longest(fields: Fields, stated: int) -> int:
    """The longest sequence, in tokens.

    Past `seq_length`, `use_dynamic_ntk` changes theta by the length of the prompt, and `use_logn_attn` scales queries:
    with either, the context ends there.
    """
    trained = fields.size("seq_length")
    switches = [fields.get(key, bool, True) for key in ("use_dynamic_ntk", "use_logn_attn")]
    return trained if any(switches) else stated


class QWen(CausalLM):
    def layer(self, config: QWenConfig, index: int) -> PreNormLayer:
        m, h, d, bias = config.hidden, config.num_heads, config.head_dim, config.bias
        attention = GroupedAttention(m, h, h, d, bias=True, out_bias=bias)
        return PreNormLayer(m, config.eps, attention, GatedMLP(m, config.ffn, config.activation, bias=bias))
