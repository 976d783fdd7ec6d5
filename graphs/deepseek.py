"""What DeepSeek-V2, V3 and V3.2 share: multi-head latent attention, dense layers before MoE layers."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from bringup.graphs.config.fields import Fields
from bringup.graphs.config.moe import RoutingConfig
from bringup.graphs.config.rope import yarn_scale
from bringup.graphs.core.module import Module
from bringup.graphs.decoder import CausalLM, DecoderConfig, PreNormLayer, read_common
from bringup.graphs.layers.mla import LatentAttention
from bringup.graphs.layers.mlp import GatedMLP
from bringup.graphs.layers.moe_shared import SharedMixture, SigmoidRouter
from bringup.graphs.layers.sparse_indexer import Indexer

NULLS = ("num_key_value_heads", "head_dim")  # keys that transformers' V2 and V3 take null for, and its V3.2 does not


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepseekConfig(DecoderConfig):
    """`head_dim` counts the channels of a key that turn, `plain_dim` those that do not, `value_dim` a value's.

    `layers` are the numbers that its layers have in a checkpoint; `sparse` says of each whether it has experts.
    `q_rank` None: queries come straight from the hidden state. `draft_layers` are those past a model's last that a
    checkpoint has to predict further tokens with.
    """

    layers: range
    q_rank: int | None
    kv_rank: int
    plain_dim: int
    value_dim: int
    attention_bias: bool
    mlp_bias: bool = False
    interleaved: bool = True
    sparse: tuple[bool, ...]
    draft_layers: int = 0
    expert_ffn: int
    shared_experts: int
    routing: RoutingConfig

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        return cls.of_layers(fields, range(fields.layers("num_hidden_layers")))

    @classmethod
    def of_layers(cls, fields: Fields, layers: range) -> Self:
        """Of some of a checkpoint's layers: all of the model, or one of its draft."""
        return cls(**cls.settings(fields, layers), layers=layers)

    @classmethod
    def settings(cls, fields: Fields, layers: range) -> dict[str, Any]:
        """All but `layers`, by what a family's config says."""
        raise NotImplementedError


def read_deepseek(
    fields: Fields,
    sparse: tuple[bool, ...],
    *,
    expert_ffn: int,
    shared: int,
    max_positions: int,
    nulls: Collection[str] = (),
) -> dict[str, Any]:
    """The fields that V2 and V3 read alike; the settings are what a family has for keys that are absent.

    `nulls`: which of `num_key_value_heads` and `head_dim` may be null.
    """
    turned, plain = fields.size("qk_rope_head_dim", 64), fields.size("qk_nope_head_dim", 128)
    for key, value in (("head_dim", turned), ("num_key_value_heads", fields.size("num_attention_heads"))):
        fields.only(key, value, *([None] if key in nulls else []))
    fields.only("qk_head_dim", plain + turned, None)  # as `head_dim`, written by transformers and not read
    _check_scale(fields)
    straight = "q_lora_rank" in fields.raw and fields.maybe("q_lora_rank", int) is None
    return read_common(
        fields,
        (None,) * len(sparse),
        max_positions=max_positions,
        head_dim=turned,
        nulls=nulls,
    ) | {
        "q_rank": None if straight else fields.size("q_lora_rank", 1536),
        "kv_rank": fields.size("kv_lora_rank", 512),
        "plain_dim": plain,
        "value_dim": fields.size("v_head_dim", 128),
        "attention_bias": fields.take("attention_bias", bool, False),
        "sparse": sparse,
        "expert_ffn": fields.size("moe_intermediate_size", expert_ffn),
        "shared_experts": fields.size("n_shared_experts", shared),
    }


def _check_scale(fields: Fields) -> None:
    """Refuses a null `factor` where attention is scaled by it.

    With `mscale_all_dim`, transformers' DeepseekV3Attention reads the factor itself, and does not compute with null.
    """
    rope = fields.group("rope_scaling") or fields.group("rope_parameters")
    if rope.get("mscale_all_dim") and "factor" in rope and rope["factor"] is None:
        message = "rope's `factor` is null; with `mscale_all_dim` attention is scaled by it"
        fields.error("BU121", message, "factor", "state the number that the context is stretched by", stops="")


def sparse_layers(fields: Fields, layers: range, *, dense: int) -> tuple[bool, ...]:
    """From layer `first_k_dense_replace` on, as in transformers.

    The published code (deepseek-ai/DeepSeek-V2, modeling_deepseek.py) has experts only in layers whose number
    `moe_layer_freq` divides. It is 1 in every published config; another value is a warning.
    """
    first = fields.take("first_k_dense_replace", int, dense)
    if (every := fields.size("moe_layer_freq", 1)) > 1:
        differs = f"the published code has experts in every layer whose number {every} divides"
        fields.ignored("moe_layer_freq", every, differs)
    return tuple(number >= first for number in layers)


class Deepseek(CausalLM):
    router: ClassVar[type[Module]] = SigmoidRouter

    def layer(self, config: Any, index: int) -> PreNormLayer:
        return PreNormLayer(config.hidden, config.eps, self.attention(config), self.mlp(config, index))

    def attention(self, config: DeepseekConfig, indexer: Indexer | None = None) -> LatentAttention:
        return LatentAttention(
            config.hidden,
            config.num_heads,
            q=config.q_rank,
            c=config.kv_rank,
            n=config.plain_dim,
            p=config.head_dim,
            v=config.value_dim,
            bias=config.attention_bias,
            interleaved=config.interleaved,
            sharpened=yarn_scale(config.rope.factor, config.rope.mscale_all_dim) ** 2,
            indexer=indexer,
        )

    def mlp(self, config: DeepseekConfig, index: int) -> Module:
        m, act, bias = config.hidden, config.activation, config.mlp_bias
        if not config.sparse[index]:
            return GatedMLP(m, config.ffn, act, bias=bias)
        f, shared = config.expert_ffn, config.shared_experts
        return SharedMixture(m, f, shared, act, config.routing, router=self.router, bias=bias)
