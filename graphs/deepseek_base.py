"""What DeepSeek-V2, V3 and V3.2 have in common: latent attention, dense layers and then mixtures of experts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from bringup.graphs.config import Fields
from bringup.graphs.decoder import CausalLM, DecoderConfig, PreNormLayer, read_common
from bringup.graphs.fp8 import Block, fp8_block
from bringup.graphs.layers.indexer import Indexer
from bringup.graphs.layers.latent import LatentAttention
from bringup.graphs.layers.mixture import SharedMixture, SigmoidRouter
from bringup.graphs.layers.mlp import GatedMLP
from bringup.graphs.module import Module
from bringup.graphs.rope import yarn_scale
from bringup.graphs.routing import RoutingConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepseekConfig(DecoderConfig):
    """`head_dim` counts the channels of a key that turn, `plain_dim` those that do not, `value_dim` a value's.

    `q_rank` None: queries come straight from the hidden state. `sparse` says of each layer whether it has experts.
    `draft_layers` are those past the last that a checkpoint has to predict further tokens with. `fp8` are the blocks
    of quantised matrices.
    """

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
    fp8: Block | None


def read_deepseek(
    fields: Fields, sparse: tuple[bool, ...], *, expert_ffn: int, shared: int, max_positions: int
) -> dict[str, Any]:
    """The fields that V2 and V3 read alike; the settings are what a family has for keys that are absent."""
    turned, plain = fields.size("qk_rope_head_dim", 64), fields.size("qk_nope_head_dim", 128)
    fields.only("head_dim", turned)  # transformers writes these two, and ignores what they say
    fields.only("qk_head_dim", plain + turned)
    fields.only("num_key_value_heads", fields.size("num_attention_heads"))
    straight = "q_lora_rank" in fields.raw and fields.maybe("q_lora_rank", int) is None
    return read_common(fields, (None,) * len(sparse), max_positions=max_positions, head_dim=turned) | {
        "q_rank": None if straight else fields.size("q_lora_rank", 1536),
        "kv_rank": fields.size("kv_lora_rank", 512),
        "plain_dim": plain,
        "value_dim": fields.size("v_head_dim", 128),
        "attention_bias": fields.take("attention_bias", bool, False),
        "sparse": sparse,
        "expert_ffn": fields.size("moe_intermediate_size", expert_ffn),
        "shared_experts": fields.size("n_shared_experts", shared),
        "fp8": fp8_block(fields),
    }


def sparse_layers(fields: Fields, *, dense: int) -> tuple[bool, ...]:
    """From layer `first_k_dense_replace` on, each whose number `moe_layer_freq` divides.

    The latter is obeyed by the published code (deepseek-ai/DeepSeek-V2, modeling_deepseek.py), not by transformers.
    """
    layers, first = fields.layers("num_hidden_layers"), fields.take("first_k_dense_replace", int, dense)
    every = fields.size("moe_layer_freq", 1)
    return tuple(index >= first and index % every == 0 for index in range(layers))


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
