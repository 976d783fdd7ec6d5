"""LFM2 and LFM2.5: layers with a short gated convolution, others with attention; query and key norms.

Names and formulas: transformers' modeling_lfm2.py. N tokens of the step · m hidden · f channels of a convolution, or of
the feed-forward · h query heads · g key heads · d channels of a head
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

from bringup.graphs.config.aliases import older_keys
from bringup.graphs.config.fields import MOST_ELEMENTS, Fields
from bringup.graphs.core.module import Module
from bringup.graphs.decoder import CausalLM, DecoderConfig, PreNormLayer, RecurrentLayer, read_common
from bringup.graphs.layers.attention import GroupedAttention
from bringup.graphs.layers.causal_conv import CausalConv
from bringup.graphs.layers.linear import Linear
from bringup.graphs.layers.mlp import GatedMLP
from bringup.shown import shown

if TYPE_CHECKING:
    from torch import Tensor

    from bringup.graphs.core.step import Step


@dataclass(frozen=True, slots=True, kw_only=True)
class Lfm2Config(DecoderConfig):
    """`with_attention`: which layers have attention. `taps`: tokens of a convolution."""

    family: ClassVar[str] = "lfm2"
    model_types: ClassVar[tuple[str, ...]] = ("lfm2",)

    with_attention: tuple[bool, ...]
    taps: int
    conv_bias: bool

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        with_attention = attention_layers(fields, fields.layers("num_hidden_layers"))
        keys = older_keys(fields, {"intermediate_size": "block_ff_dim", "tie_word_embeddings": "tie_embedding"})
        common = read_lfm2(fields, with_attention, keys)
        common["ffn"] = _adjusted(fields, common["ffn"])
        return cls(**common)


def read_lfm2(fields: Fields, with_attention: tuple[bool, ...], keys: Mapping[str, str]) -> dict[str, Any]:
    """The fields of `Lfm2Config`, except that `ffn` is the width that the config states. `keys` as in `read_common`."""
    windows = (None,) * len(with_attention)
    absent: dict[str, Any] = {"max_positions": 128_000, "kv_heads": 8, "eps": 1e-5, "theta": 1e6, "tied": True}
    common = read_common(fields, windows, keys={"rms_norm_eps": "norm_eps", **keys}, **absent)
    # transformers does not read these; with other values, its code is not the model's
    for key in ("block_dim", "conv_dim", "conv_dim_out"):
        fields.only(key, common["hidden"])
    fields.only("num_heads", common["num_heads"])
    fields.only("block_norm_eps", common["eps"])
    fields.only("theta", common["rope"].theta)
    fields.only("block_use_swiglu", True)
    fields.only("use_pos_enc", True)
    fields.only("hidden_act", "silu")
    taps, bias = fields.size("conv_L_cache", 3), fields.get("conv_bias", bool, False)
    return dict(**common, with_attention=with_attention, taps=taps, conv_bias=bias)


def attention_layers(fields: Fields, layers: int) -> tuple[bool, ...]:
    """Whether each layer has attention: by `layer_types`, else by `full_attn_idxs`; by default all have it."""
    types, numbers = fields.strings("layer_types"), fields.indices("full_attn_idxs")
    stated = fields.raw.get("full_attn_idxs") is not None
    of_numbers = tuple(index in numbers or not stated for index in range(layers))
    if types is None:
        return of_numbers
    if len(types) != layers or not set(types) <= {"conv", "full_attention"}:
        fields.error("BU122", f"`layer_types` is {shown(types)}; {layers} of conv or full_attention", "layer_types")
    of_types = tuple(types[index : index + 1] != ["conv"] for index in range(layers))
    if stated and of_numbers != of_types:
        fields.overridden("full_attn_idxs", numbers, fields.path("layer_types"), types)
    return of_types


def _adjusted(fields: Fields, width: int) -> int:
    """The width of the feed-forward: with `block_auto_adjust_ff_dim`, two thirds, and a multiple of a block."""
    adjust = fields.get("block_auto_adjust_ff_dim", bool, True)
    multiplier = fields.positive("block_ffn_dim_multiplier", 1.0)
    multiple = fields.size("block_multiple_of", 256)
    if not adjust or fields.stopped:
        return width
    scaled = multiplier * int(2 * width / 3)
    if not 1 <= scaled <= MOST_ELEMENTS:
        message = f"`block_ffn_dim_multiplier` is {multiplier:g}: the feed-forward has {scaled:g} channels"
        fields.error("BU121", message, "block_ffn_dim_multiplier", "a width is at least 1 and at most 2^31")
        return width
    return multiple * -(-int(scaled) // multiple)


class ShortConv(Module):
    """out(c · conv(b · x)) of three projections b, c and x of the input (transformers' Lfm2ShortConv)."""

    def __init__(self, m: int, *, taps: int, bias: bool) -> None:
        super().__init__()
        self.b_proj = Linear("out:f in:m", f=m, m=m, bias=bias)
        self.c_proj = Linear("out:f in:m", f=m, m=m, bias=bias)
        self.x_proj = Linear("out:f in:m", f=m, m=m, bias=bias)
        self.conv = CausalConv("f", taps=taps, bias=bias, f=m)
        self.out_proj = Linear("out:m in:f", m=m, f=m, bias=bias)

    def forward(self, x_Nm: Tensor, step: Step) -> Tensor:
        mixed_Nf = self.conv(self.b_proj(x_Nm) * self.x_proj(x_Nm), step)
        return self.out_proj(self.c_proj(x_Nm) * mixed_Nf)


class Lfm2(CausalLM):
    def layer(self, config: Lfm2Config, index: int) -> Module:
        m, h, g, d = config.hidden, config.num_heads, config.num_kv_heads, config.head_dim
        mlp = self.mlp(config, index)
        if config.with_attention[index]:
            return PreNormLayer(m, config.eps, GroupedAttention(m, h, g, d, qk_norm=config.eps), mlp)
        return RecurrentLayer(m, config.eps, ShortConv(m, taps=config.taps, bias=config.conv_bias), mlp)

    def mlp(self, config: Any, index: int) -> Module:
        return GatedMLP(config.hidden, config.ffn, config.activation)
