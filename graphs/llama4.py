"""Llama 4 Scout and Maverick: chunked attention with rope, every fourth layer without; MoE with a shared expert.

config.json has the text model's keys under `text_config`, or is that of the text model alone. Names and formulas:
transformers' modeling_llama4.py. N tokens of the step · m hidden · h query heads · g key heads · d channels of a head
· K experts of a token
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

from bringup.graphs.config.fields import Fields
from bringup.graphs.config.rotated_layers import read_rotated
from bringup.graphs.config.text_config import of_text
from bringup.graphs.core.module import Module
from bringup.graphs.core.step import Step
from bringup.graphs.decoder import CausalLM, DecoderConfig, PreNormLayer, read_common
from bringup.graphs.layers.attention import GroupedAttention
from bringup.graphs.layers.linear import Linear
from bringup.graphs.layers.mlp import GatedMLP
from bringup.graphs.layers.moe_experts import Experts
from bringup.graphs.layers.norm import PlainRMSNorm
from bringup.graphs.ops.moe_routing import top_experts
from bringup.graphs.ops.rotary import query_growth, rope
from bringup.shown import shown

if TYPE_CHECKING:
    from torch import Tensor

# Keys on images: none affects a logit of text.
IMAGES = frozenset(
    {
        "vision_config", "boi_token_index", "eoi_token_index", "image_token_index", "boi_token_id", "eoi_token_id",
        "image_token_id",
    }
)  # fmt: skip
FULL, CHUNKED = "full_attention", "chunked_attention"


@dataclass(frozen=True, slots=True, kw_only=True)
class Llama4Config(DecoderConfig):
    """`windows` are the sizes of chunks. `ffn` is the width of the MLP in layers that are not `sparse`, `expert_ffn`
    that of a routed expert and of the shared one.

    `rotated`: which layers have rope; their queries and keys are then normed if `qk_norm`. In the other layers queries
    grow with their position, by `growth`: (factor, period), None if they do not.
    """

    family: ClassVar[str] = "llama4"
    model_types: ClassVar[tuple[str, ...]] = ("llama4", "llama4_text")

    attention_bias: bool
    rotated: tuple[bool, ...]
    qk_norm: bool
    growth: tuple[float, int] | None
    sparse: tuple[bool, ...]
    expert_ffn: int
    num_experts: int
    experts_per_token: int

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        return of_text(fields, IMAGES, cls._of_text, ties="inner")

    @classmethod
    def _of_text(cls, fields: Fields) -> Self:
        layers = fields.layers("num_hidden_layers")
        rotated, sparse = read_rotated(fields, layers, empty=True), _sparse(fields, layers)
        experts = fields.experts("num_local_experts", 16, minimum=int(any(sparse)))
        absent: dict[str, Any] = {"max_positions": 4096 * 32, "kv_heads": 8, "head_dim": 128, "ffn": 16384, "eps": 1e-5}
        keys = {"intermediate_size": "intermediate_size_mlp"}
        fields.get("router_jitter_noise", float, 0.0)  # transformers reads neither of these two
        fields.only("for_llm_compressor", False)
        return cls(
            **read_common(fields, _chunks(fields, rotated), keys=keys, theta=500_000.0, **absent),
            attention_bias=fields.get("attention_bias", bool, False),
            rotated=rotated,
            qk_norm=fields.get("use_qk_norm", bool, True),
            growth=_growth(fields),
            sparse=sparse,
            expert_ffn=fields.size("intermediate_size", 8192),
            num_experts=experts,
            experts_per_token=fields.size("num_experts_per_tok", 1, minimum=int(any(sparse)), maximum=max(experts, 1)),
        )


def _sparse(fields: Fields, layers: int) -> tuple[bool, ...]:
    """Whether each layer has experts: those that `moe_layers` lists, else every `interleave_moe_layer_step`-th."""
    listed = fields.indices("moe_layers")
    is_stated = fields.raw.get("moe_layers") is not None
    every = fields.size("interleave_moe_layer_step", 1, minimum=0 if is_stated else 1)
    return tuple(index in listed if is_stated else (index + 1) % every == 0 for index in range(layers))


def _chunks(fields: Fields, rotated: tuple[bool, ...]) -> tuple[int | None, ...]:
    """The size of each layer's chunks, None for full attention: by `layer_types`; by default, layers with rope have
    chunks."""
    size = fields.size("attention_chunk_size", 8192) if fields.raw.get("attention_chunk_size", 0) is not None else None
    fields.read.add("attention_chunk_size")
    types = fields.strings("layer_types")
    if types is None:
        return tuple(size if rotates else None for rotates in rotated)
    if len(types) != len(rotated) or not set(types) <= {FULL, CHUNKED}:
        message = f"`layer_types` is {shown(types)}; {len(rotated)} of {FULL} or {CHUNKED}"
        fields.error("BU122", message, "layer_types")
    if CHUNKED in types and size is None:
        message = f"`layer_types` lists {CHUNKED}, and `attention_chunk_size` is null"
        fields.error("BU121", message, "attention_chunk_size", stops="")
    return tuple(size if types[index : index + 1] == [CHUNKED] else None for index in range(len(rotated)))


def _growth(fields: Fields) -> tuple[float, int] | None:
    """The growth of queries without rope; None without `attn_temperature_tuning`.

    Published files of April 2025 have the number 4 for that key, which transformers 4.51 only tests for truth.
    """
    growth = fields.get("attn_scale", float, 0.1), fields.size("floor_scale", 8192)
    key = "attn_temperature_tuning"
    fields.read.add(key)
    value = fields.raw.get(key)
    is_tuned = value != 0 if type(value) is int else fields.get(key, bool, True)
    return growth if is_tuned else None


class Llama4Attention(GroupedAttention):
    """Attention within chunks or over all keys, with rope of adjacent channels or without; see `Llama4Config`."""

    def __init__(self, config: Llama4Config, index: int) -> None:
        m, h, g, d, bias = config.hidden, config.num_heads, config.num_kv_heads, config.head_dim, config.attention_bias
        super().__init__(m, h, g, d, bias=bias, out_bias=bias, window=config.windows[index], chunked=True)
        self.rotates = config.rotated[index]
        self.qk_norm = PlainRMSNorm(d, config.eps) if self.rotates and config.qk_norm else None
        self.growth = None if self.rotates else config.growth

    def with_positions(
        self, q_NHD: Tensor, k_NGD: Tensor, cos: Tensor | None, sin: Tensor | None, step: Step
    ) -> tuple[Tensor, Tensor]:
        """Rotated and then normed; without rope, queries grow (`query_growth`) with their position, counted from 1."""
        if self.rotates:
            assert cos is not None
            assert sin is not None
            q_NHD, k_NGD = (rope(each, cos, sin, interleaved=True) for each in (q_NHD, k_NGD))
            return (q_NHD, k_NGD) if self.qk_norm is None else (self.qk_norm(q_NHD), self.qk_norm(k_NGD))
        if self.growth is None:
            return q_NHD, k_NGD
        growth_N11 = query_growth(step.positions + 1, *self.growth)
        return (q_NHD.float() * growth_N11).to(q_NHD.dtype), k_NGD


class ScaledInputMixture(Module):
    """Routes a token to the experts with the highest scores, whose input is multiplied by the sigmoid of the score.

    A shared expert of the same width computes every token.
    """

    def __init__(self, e: int, m: int, f: int, activation: str, per_token: int) -> None:
        super().__init__()
        self.per_token = per_token
        self.gate = Linear("out:e in:m", e=e, m=m, bias=False)
        self.experts = Experts(e, m, f, activation, weigh="inputs")
        self.shared_expert = GatedMLP(m, f, activation)

    def forward(self, x_Nm: Tensor) -> Tensor:
        selected_NK, scores_NK = top_experts(self.gate(x_Nm).float(), self.per_token)
        weights_NK = scores_NK.sigmoid().to(x_Nm.dtype)
        return self.shared_expert(x_Nm) + self.experts(x_Nm, selected_NK, weights_NK)


class Llama4(CausalLM):
    def layer(self, config: Llama4Config, index: int) -> PreNormLayer:
        m, e, act = config.hidden, config.num_experts, config.activation
        mlp = (
            ScaledInputMixture(e, m, config.expert_ffn, act, config.experts_per_token)
            if config.sparse[index]
            else GatedMLP(m, config.ffn, act)
        )
        return PreNormLayer(m, config.eps, Llama4Attention(config, index), mlp)
