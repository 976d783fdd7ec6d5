"""The parts that DeepSeek-V2, V3, V3.2, GLM-5, Mistral 4 and Mistral Large 4 share: multi-head latent attention, dense
layers before MoE layers."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Self

from bringup.graphs.config.fields import Fields
from bringup.graphs.config.moe import RoutingConfig
from bringup.graphs.config.rope import yarn_scale
from bringup.graphs.core.module import Module
from bringup.graphs.decoder import CausalLM, DecoderConfig, PreNormLayer, read_common
from bringup.graphs.layers.mla import LatentAttention
from bringup.graphs.layers.mlp import GatedMLP
from bringup.graphs.layers.moe_shared import SharedMixture, SigmoidRouter
from bringup.graphs.layers.query_growth import QueryGrowth
from bringup.graphs.layers.sparse_indexer import Indexer

NULLS = ("num_key_value_heads", "head_dim")  # keys that may be null in transformers' V2 and V3, but not in its V3.2


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepseekConfig(DecoderConfig):
    """The config of a model with MLA. Each key has `head_dim` channels with RoPE and `plain_dim` without; values have
    `value_dim` channels. `growth` has the factor and the period of queries that grow with their position.

    `layers` are the layer numbers in the checkpoint; `sparse` states for each whether it has experts. `q_rank` None:
    queries are computed from the hidden state directly. `draft_layers` are the layers of the checkpoint after the
    model's last: they predict further tokens.
    """

    layers: range
    q_rank: int | None
    kv_rank: int
    plain_dim: int
    value_dim: int
    attention_bias: bool
    mlp_bias: bool = False
    interleaved: bool = True
    growth: tuple[float, int] | None = None
    sparse: tuple[bool, ...]
    draft_layers: int = 0
    expert_ffn: int
    shared_experts: int
    routing: RoutingConfig

    @property
    def unrotated(self) -> set[int]:
        """The layers without rope: each key has `plain_dim` and `head_dim` channels without it."""
        return set()

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        return cls.of_layers(fields, range(fields.layers("num_hidden_layers")))

    @classmethod
    def of_layers(cls, fields: Fields, layers: range) -> Self:
        """The config of these layers of a checkpoint: all layers of the model, or that of a draft."""
        return cls(**cls.settings(fields, layers), layers=layers)

    @classmethod
    def settings(cls, fields: Fields, layers: range) -> dict[str, Any]:
        """The fields other than `layers`, from the family's config.json."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True, kw_only=True)
class Defaults:
    """The family's defaults for absent keys: those of DeepSeek-V3, unless stated.

    `q_rank` None: the family has no low-rank queries, and no key for them. `nulls`: which of `num_key_value_heads` and
    `head_dim` may be null. `head_dim` is that of the channels with RoPE, or of all; or any, if transformers replaces it
    by `qk_rope_head_dim`. `rope` are settings of `RopeConfig.from_hf`.
    """

    max_positions: int
    expert_ffn: int = 2048
    shared_experts: int = 1
    q_rank: int | None = 1536
    kv_rank: int = 512
    plain_dim: int = 128
    value_dim: int = 128
    experts: int = 256
    per_token: int = 8
    factor: float = 2.5
    groups: int = 8
    topk_groups: int = 4
    eps: float = 1e-6
    nulls: Collection[str] = ()
    head_dim: Literal["rope", "all", "any"] = "rope"
    rope: Mapping[str, Any] = field(default_factory=dict[str, Any])


def read_deepseek(fields: Fields, sparse: tuple[bool, ...], absent: Defaults) -> dict[str, Any]:
    """The fields that V2, V3 and the families after them read alike; `absent` are the defaults."""
    rotary, plain = fields.size("qk_rope_head_dim", 64), fields.size("qk_nope_head_dim", absent.plain_dim)
    if absent.head_dim == "any":
        fields.size("head_dim", rotary)
    else:
        d = rotary if absent.head_dim == "rope" else plain + rotary
        fields.only("head_dim", d, *([None] if "head_dim" in absent.nulls else []))
    kv_null = [None] if "num_key_value_heads" in absent.nulls else []
    fields.only("num_key_value_heads", fields.size("num_attention_heads"), *kv_null)
    fields.only("qk_head_dim", plain + rotary, None)  # like `head_dim`, written by transformers but not read
    _check_scale(fields)
    return read_common(
        fields,
        (None,) * len(sparse),
        max_positions=absent.max_positions,
        head_dim=rotary,
        eps=absent.eps,
        keys={"head_dim": "qk_rope_head_dim"},
        nulls=absent.nulls,
        **absent.rope,
    ) | {
        "q_rank": _q_rank(fields, absent.q_rank),
        "kv_rank": fields.size("kv_lora_rank", absent.kv_rank),
        "plain_dim": plain,
        "value_dim": fields.size("v_head_dim", absent.value_dim),
        "attention_bias": fields.get("attention_bias", bool, False),
        "sparse": sparse,
        "expert_ffn": fields.size("moe_intermediate_size", absent.expert_ffn),
        "shared_experts": fields.size("n_shared_experts", absent.shared_experts),
    }


def _q_rank(fields: Fields, absent: int | None) -> int | None:
    if absent is None or ("q_lora_rank" in fields.raw and fields.optional("q_lora_rank", int) is None):
        return None
    return fields.size("q_lora_rank", absent)


def _check_scale(fields: Fields) -> None:
    """Reports BU121 for a null `factor` that attention would be scaled by.

    With `mscale_all_dim`, transformers' DeepseekV3Attention reads the factor itself, and fails if it is null.
    """
    rope = fields.group("rope_scaling", stops="") or fields.group("rope_parameters", stops="")
    if rope.get("mscale_all_dim") and "factor" in rope and rope["factor"] is None:
        message = "rope's `factor` is null; with `mscale_all_dim` attention is scaled by it"
        fields.error("BU121", message, "factor", "state the number that the context is stretched by", stops="")


def sparse_layers(fields: Fields, layers: range, *, dense: int) -> tuple[bool, ...]:
    """For each layer, whether it has experts: from layer `first_k_dense_replace` on, as in transformers.

    The published code (deepseek-ai/DeepSeek-V2, modeling_deepseek.py) has experts only in layers whose number is a
    multiple of `moe_layer_freq`. It is 1 in every published config; another value is a warning.
    """
    first = fields.get("first_k_dense_replace", int, dense)
    if (every := fields.size("moe_layer_freq", 1)) > 1:
        differs = f"the published code has experts in every layer whose number {every} divides"
        fields.ignored("moe_layer_freq", every, differs)
    return tuple(number >= first for number in layers)


class Deepseek(CausalLM):
    router: ClassVar[type[Module]] = SigmoidRouter

    def layer(self, config: Any, index: int) -> PreNormLayer:
        return PreNormLayer(config.hidden, config.eps, self.attention(config), self.mlp(config, index))

    def attention(
        self,
        config: DeepseekConfig,
        indexer: Indexer | None = None,
        kind: type[LatentAttention] = LatentAttention,
        **settings: Any,
    ) -> LatentAttention:
        """`settings` are those of `LatentAttention` that differ from the config's."""
        of_config: dict[str, Any] = {
            "q": config.q_rank,
            "c": config.kv_rank,
            "n": config.plain_dim,
            "p": config.head_dim,
            "v": config.value_dim,
            "bias": config.attention_bias,
            "interleaved": config.interleaved,
            "scale_factor": yarn_scale(config.rope.factor, config.rope.mscale_all_dim) ** 2,
            "growth": None if config.growth is None else QueryGrowth(*config.growth),
            "indexer": indexer,
        }
        return kind(config.hidden, config.num_heads, **of_config | settings)

    def mlp(self, config: DeepseekConfig, index: int) -> Module:
        m, act, bias = config.hidden, config.activation, config.mlp_bias
        if not config.sparse[index]:
            return GatedMLP(m, config.ffn, act, bias=bias)
        f, shared = config.expert_ffn, config.shared_experts
        return SharedMixture(m, f, shared, act, config.routing, router=self.router, bias=bias)
