"""Gemma 4's text models: Gemma 3 with wider heads in layers with full attention, and values that have a norm.

Some models have experts in parallel with the MLP, embeddings of tokens for each layer, or layers that attend to the
keys and values of an earlier one. Gemma 4 12B, which transformers calls Gemma 4 Unified, has neither experts nor such
embeddings. config.json has the text model's keys under `text_config`, or is the text model's.
Names and formulas: transformers' modeling_gemma4.py and modeling_gemma4_unified.py. N tokens of the step · m hidden ·
p channels of a layer's input
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Self

from bringup.graphs.config.by_layer_type import Heads, read_heads, read_layer_types, read_ropes
from bringup.graphs.config.fields import Fields
from bringup.graphs.config.text_config import of_text
from bringup.graphs.core.module import Module, Param
from bringup.graphs.core.step import Step
from bringup.graphs.decoder import CausalLM, DecoderConfig, read_common
from bringup.graphs.layers.embedding import Embedding
from bringup.graphs.layers.kv_cache import KVCache
from bringup.graphs.layers.linear import Linear
from bringup.graphs.layers.mlp import GatedMLP
from bringup.graphs.layers.moe_experts import Experts
from bringup.graphs.layers.norm import Float32RMSNorm, PlainRMSNorm, RMSNorm
from bringup.graphs.layers.rotary import rope_rows
from bringup.graphs.ops.activation import ACTIVATIONS
from bringup.graphs.ops.attention import attention
from bringup.graphs.ops.moe_routing import top_experts
from bringup.graphs.ops.rotary import rope

if TYPE_CHECKING:
    from torch import Tensor

KEYS = {"hidden_act": "hidden_activation"}
UNIFIED = ("gemma4_unified", "gemma4_unified_text")
# Keys on images, videos and audio: none affects a logit of text.
OTHER_INPUTS = frozenset(
    """
    vision_config audio_config image_token_id video_token_id audio_token_id boi_token_id eoi_token_id boa_token_id
    eoa_token_id eoa_token_index vision_soft_tokens_per_image
    """.split()  # noqa: SIM905  as a list literal it would be 11 lines
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemma4Config(DecoderConfig):
    """`num_kv_heads` and `head_dim` are those of layers with a window, `full` has those of the others.

    The last `shared_layers` layers have no keys and values; the width of their MLP is `shared_ffn`. `input_width` is
    the width of each layer's embedding of tokens, and `input_vocab` the number of its rows. 0 means none.
    """

    family: ClassVar[str] = "gemma4"
    model_types: ClassVar[tuple[str, ...]] = ("gemma4", "gemma4_text", *UNIFIED)

    attention_bias: bool
    full: Heads
    shared_layers: int
    shared_ffn: int
    input_width: int
    input_vocab: int
    num_experts: int
    experts_per_token: int
    expert_ffn: int

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        unified = fields.raw.get("model_type") in UNIFIED
        return of_text(fields, OTHER_INPUTS, partial(cls._of_text, unified=unified), ties="outer", tied=True)

    @classmethod
    def _of_text(cls, fields: Fields, *, unified: bool) -> Self:
        windows, shared = read_layer_types(fields, 1024 if unified else 512)
        full = read_heads(fields, windows)
        positions = 262_144 if unified else 131_072
        absent: dict[str, Any] = {"max_positions": positions, "kv_heads": 4, "head_dim": 256, "ffn": 9216, "tied": True}
        absent |= {"activation": "gelu_pytorch_tanh", "caps": {"final_logit_softcapping": None}}
        local, settings, ropes = read_ropes(fields, windows, full.width)
        common = read_common(local, windows, keys=KEYS, scaled_positions=True, **absent, **settings)
        fields.doubtful |= local.doubtful
        fields.only("rope_scaling", None)  # transformers does not read it
        if not fields.doubtful and common["num_heads"] % full.count:
            message = f"{common['num_heads']} heads cannot share {full.count} key heads evenly"
            fields.error("BU121", message, full.key, stops="")
        common |= ropes(common["rope"], common["max_positions"]) | {"query_scale": 1.0}
        fields.only("use_bidirectional_attention", None, "vision")  # of images
        wide = fields.get("use_double_wide_mlp", bool, False)
        return cls(
            **common,
            embedding_scale=common["hidden"] ** 0.5,
            attention_bias=fields.get("attention_bias", bool, False),
            full=full,
            shared_layers=shared,
            shared_ffn=common["ffn"] * (2 if wide else 1),
            **_parts(fields, unified),
        )


def _parts(fields: Fields, unified: bool) -> dict[str, Any]:
    """The sizes of what only some models have; transformers' class of the unified one has none of it."""
    if unified:
        fields.only("hidden_size_per_layer_input", 0, None)
        fields.only("enable_moe_block", False, None)
    vocab = fields.size("vocab_size_per_layer_input", 262_144)
    width = 0 if unified else fields.size("hidden_size_per_layer_input", 256, minimum=0)
    routed = not unified and fields.get("enable_moe_block", bool, False)
    return {"input_width": width, "input_vocab": vocab, **_experts(fields, routed)}


def _experts(fields: Fields, routed: bool) -> dict[str, Any]:
    keys = ("num_experts", "top_k_experts", "moe_intermediate_size")
    if not routed:
        for key in keys:
            fields.optional(key, int)
        return {"num_experts": 0, "experts_per_token": 0, "expert_ffn": 0}
    count = fields.experts(keys[0], None)
    return {
        "num_experts": count,
        "experts_per_token": fields.size(keys[1], maximum=count),
        "expert_ffn": fields.size(keys[2]),
    }


class Gemma4Attention(Module):
    """Attention with norms of each head's queries, keys and values, whose scores are not scaled.

    Without `values`, the values are the keys before their norm. With `of`, keys and values are those of an earlier
    layer.
    """

    def __init__(
        self,
        m: int,
        h: int,
        heads: Heads,
        eps: float,
        *,
        bias: bool,
        window: int | None,
        of: KVCache | None,
    ) -> None:
        super().__init__()
        g, d = heads.count, heads.width
        self.head_dim, self.window = d, window
        self.q_proj = Linear("out:(h d) in:m", h=h, d=d, m=m, bias=bias)
        self.k_proj = Linear("out:(g d) in:m", g=g, d=d, m=m, bias=bias) if of is None else None
        self.v_proj = Linear("out:(g d) in:m", g=g, d=d, m=m, bias=bias) if of is None and heads.values else None
        self.o_proj = Linear("out:m in:(h d)", h=h, d=d, m=m, bias=bias)
        self.q_norm = Float32RMSNorm(d, eps)
        self.k_norm = Float32RMSNorm(d, eps) if of is None else None
        self.v_norm = PlainRMSNorm(d, eps) if of is None else None
        self.cache = KVCache(g, d, window, of=of)

    def forward(self, x_Nm: Tensor, cos: Tensor, sin: Tensor, step: Step) -> Tensor:
        q_NHD = rope(self.q_norm(self._heads(self.q_proj(x_Nm))), cos, sin)
        keys, values = self.cache.k, self.cache.v
        if self.k_proj is not None and self.k_norm is not None and self.v_norm is not None:
            k_NGD = self._heads(self.k_proj(x_Nm))
            v_NGD = k_NGD if self.v_proj is None else self._heads(self.v_proj(x_Nm))
            keys, values = self.cache(step, rope(self.k_norm(k_NGD), cos, sin), self.v_norm(v_NGD))
        mixed = attention(q_NHD, keys, values, step, 1.0, self.window, ring=self.cache.ring)
        return self.o_proj(mixed.flatten(1))

    def _heads(self, projected: Any) -> Tensor:
        return projected.unflatten(1, (-1, self.head_dim))


class Router(Module):
    """(selected_NK, weights_NK) by softmax in float32; the weights add up to 1 before a factor of each expert."""

    def __init__(self, m: int, e: int, per_token: int, eps: float) -> None:
        super().__init__()
        self.per_token, self.factor = per_token, m**-0.5
        self.scaled_norm = RMSNorm(m, eps)
        self.proj = Linear("out:e in:m", e=e, m=m, bias=False)
        self.per_expert_scale = Param("e", e=e)

    def forward(self, x_Nm: Tensor) -> tuple[Tensor, Tensor]:
        shares_NE = self.proj(self.scaled_norm(x_Nm) * self.factor).float().softmax(-1)
        selected_NK, weights_NK = top_experts(shares_NE, self.per_token)
        weights_NK = weights_NK / weights_NK.sum(-1, keepdim=True)
        return selected_NK, weights_NK * self.per_expert_scale[selected_NK]


class LayerInput(Module):
    """A layer's own embedding of the tokens, and a projection of their embedding, as one input [N, p].

    In checkpoints, those of all layers are one table and one matrix.
    """

    def __init__(self, config: Gemma4Config) -> None:
        super().__init__()
        m, p = config.hidden, config.input_width
        self.factor = m**-0.5
        self.embed_tokens = Embedding("token p", scale=p**0.5, token=config.input_vocab, p=p)
        self.projection = Linear("out:p in:m", p=p, m=m, bias=False)
        self.norm = Float32RMSNorm(p, config.eps)

    def forward(self, embedded_Nm: Tensor, tokens_N: Tensor) -> Tensor:
        projected_Np = self.norm(self.projection(embedded_Nm) * self.factor)
        return (projected_Np + self.embed_tokens(tokens_N)) * 2**-0.5


class Gemma4Layer(Module):
    """Attention, then an MLP and experts in parallel, each between two norms; then the layer's own input."""

    def __init__(self, config: Gemma4Config, index: int, of: KVCache | None) -> None:
        super().__init__()
        m, eps, window = config.hidden, config.eps, config.windows[index]
        heads = config.full if window is None else Heads(config.num_kv_heads, config.head_dim)
        self.rope = int(window is not None)
        self.input_layernorm = Float32RMSNorm(m, eps)
        self.self_attn = Gemma4Attention(
            m, config.num_heads, heads, eps, bias=config.attention_bias, window=window, of=of
        )
        self.post_attention_layernorm = Float32RMSNorm(m, eps)
        self.pre_feedforward_layernorm = Float32RMSNorm(m, eps)
        self.mlp = GatedMLP(m, config.ffn if of is None else config.shared_ffn, config.activation)
        self.post_feedforward_layernorm = Float32RMSNorm(m, eps)
        e = config.num_experts
        self.router = Router(m, e, config.experts_per_token, eps) if e else None
        self.experts = Experts(e, m, config.expert_ffn, config.activation) if e else None
        if e:
            self.post_feedforward_layernorm_1 = Float32RMSNorm(m, eps)
            self.pre_feedforward_layernorm_2 = Float32RMSNorm(m, eps)
            self.post_feedforward_layernorm_2 = Float32RMSNorm(m, eps)
        p, self.activation = config.input_width, config.activation
        self.input = LayerInput(config) if p else None
        if p:
            self.per_layer_input_gate = Linear("out:p in:m", p=p, m=m, bias=False)
            self.per_layer_projection = Linear("out:m in:p", m=m, p=p, bias=False)
            self.post_per_layer_input_norm = Float32RMSNorm(m, eps)
        self.layer_scalar = Param("one", one=1)

    def forward(self, x_Nm: Tensor, *shared: Any) -> Tensor:
        """`shared` is the embedded tokens if layers have an input, cos and sin of both ropes, and the step."""
        *embedded, cos, sin, cos_local, sin_local, step = shared
        rows = (cos_local, sin_local) if self.rope else (cos, sin)
        mixed_Nm = self.self_attn(self.input_layernorm(x_Nm), *rows, step)
        x_Nm = x_Nm + self.post_attention_layernorm(mixed_Nm)
        output_Nm = self.mlp(self.pre_feedforward_layernorm(x_Nm))
        if self.router is not None and self.experts is not None:
            selected_NK, weights_NK = self.router(x_Nm)
            routed_Nm = self.experts(self.pre_feedforward_layernorm_2(x_Nm), selected_NK, weights_NK)
            output_Nm = self.post_feedforward_layernorm_1(output_Nm) + self.post_feedforward_layernorm_2(routed_Nm)
        x_Nm = x_Nm + self.post_feedforward_layernorm(output_Nm)
        if self.input is not None:
            gate_Np = ACTIVATIONS[self.activation](self.per_layer_input_gate(x_Nm))
            added_Nm = self.per_layer_projection(gate_Np * self.input(embedded[0], step.tokens))
            x_Nm = x_Nm + self.post_per_layer_input_norm(added_Nm)
        return x_Nm * self.layer_scalar


class Gemma4(CausalLM):
    norm = Float32RMSNorm

    def __init__(self, config: Gemma4Config, dtype: str = "float32") -> None:
        super().__init__(config, dtype)
        self.has_inputs = config.input_width > 0
        self.model.rotary = rope_rows(config.rope, config.full.width)

    def all_layers(self, config: Gemma4Config) -> list[Module]:
        """The last layers share the cache of the last one of their type before them."""
        layers: list[Module] = []
        own = len(config.windows) - config.shared_layers
        caches: dict[int | None, KVCache] = {}
        for index, window in enumerate(config.windows):
            layer = Gemma4Layer(config, index, None if index < own else caches[window])
            caches[window] = caches[window] if index >= own else layer.self_attn.cache
            layers.append(layer)
        return layers

    def prologue(self, step: Step) -> tuple[Tensor, ...]:
        x_Nm, *ropes = super().prologue(step)
        return (x_Nm, x_Nm, *ropes) if self.has_inputs else (x_Nm, *ropes)
