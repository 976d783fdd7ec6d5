"""What most published decoders have in common: their config's words, the pre-norm layer, and the model around it.

A family gives its attention and its MLP; N tokens of the step · m hidden · vocab.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bringup.graphs.config.fields import MOST_ELEMENTS, Fields
from bringup.graphs.config.hf_config import HFConfig
from bringup.graphs.config.rope import RopeConfig
from bringup.graphs.core.graph import Graph, Step
from bringup.graphs.core.module import Module
from bringup.graphs.layers.embedding import Embedding
from bringup.graphs.layers.linear import Linear
from bringup.graphs.layers.norm import RMSNorm
from bringup.graphs.layers.rotary import rope_rows
from bringup.graphs.ops.activation import ACTIVATIONS
from bringup.shown import shown

if TYPE_CHECKING:
    from torch import Tensor


NO_WORDS: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderConfig(HFConfig):
    """Of a decoder with rope, grouped key heads and a gated MLP. `windows` has one item a layer: None sees all."""

    vocab_size: int
    max_positions: int
    hidden: int
    ffn: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    activation: str
    eps: float
    rope: RopeConfig
    tied_head: bool
    windows: tuple[int | None, ...]


def read_common(
    fields: Fields,
    windows: tuple[int | None, ...],
    *,
    max_positions: int = 2048,
    kv_heads: int | None = None,
    head_dim: int | None = None,
    eps: float | None = 1e-6,
    tied: bool = False,
    words: Mapping[str, str] = NO_WORDS,
    nulls: Collection[str] = (),
    stretched: bool = False,
    **rope: Any,
) -> dict[str, Any]:
    """The fields of `DecoderConfig`, from the keys that transformers has for them, with its defaults.

    The settings are what a family has for keys that are absent; `rope` are those of `RopeConfig.from_hf`. `words` are
    a family's own for a head's size, the activation and the norms' epsilon, by transformers' for them. `nulls`: which
    of `num_key_value_heads` and `head_dim` may be null, which then stands for what follows from the other sizes.
    `stretched`: `max_position_embeddings` counts the positions after rope stretched them, as Gemma 3's does.
    """
    hidden, heads = fields.size("hidden_size"), fields.size("num_attention_heads")
    shared = heads if "num_key_value_heads" in nulls else None
    kv = fields.size("num_key_value_heads", kv_heads or heads, null=shared)
    if not fields.doubtful and heads % kv:
        said = f"{heads} heads cannot share {kv} key heads evenly"
        fields.error("BU121", said, "num_key_value_heads", stops="")
    width = 2 if fields.stopped else head_dim or hidden // heads
    d = fields.size(words.get("head_dim", "head_dim"), width, null=width if "head_dim" in nulls else None)
    stated = fields.size("max_position_embeddings", max_positions)
    rope_config = RopeConfig.from_hf(fields, d, stated, **rope)
    return dict(
        vocab_size=fields.size("vocab_size"),
        max_positions=_longest(fields, stated if stretched else context_length(rope_config, stated)),
        hidden=hidden,
        ffn=fields.size("intermediate_size"),
        num_heads=heads,
        num_kv_heads=kv,
        head_dim=d,
        activation=fields.choice(words.get("hidden_act", "hidden_act"), ACTIVATIONS, "silu"),
        eps=fields.positive(words.get("rms_norm_eps", "rms_norm_eps"), eps),
        rope=rope_config,
        tied_head=fields.take("tie_word_embeddings", bool, tied),
        windows=windows,
    )


def _longest(fields: Fields, derived: int) -> int:
    """`max_sequence_length`, where a config of Llama 1's time or with linear rope states it; else what is derived."""
    longest = fields.size("max_sequence_length", derived)
    if longest > derived:
        fields.overruled("max_sequence_length", longest, "max_position_embeddings", derived)
    return min(longest, derived)


def context_length(rope: RopeConfig, stated: int) -> int:
    """The longest sequence, in tokens: what the config states, times the factor of a rope that stretches it.

    A config that states what rope stretches from has the stretched length in `max_position_embeddings`, and so has
    `llama3`: SGLang's rule (`get_context_length`).
    """
    return max(1, int(min(stated * rope.stretch, MOST_ELEMENTS)))


def window_of_layers(fields: Fields, layers: int, window: int | None) -> tuple[int | None, ...] | None:
    """The sliding window of each layer by `layer_types`; None where the config has none."""
    types = fields.words("layer_types")
    if types is None:
        return None
    if len(types) != layers or not set(types) <= {"full_attention", "sliding_attention"}:
        fields.error("BU122", f"`layer_types` is {shown(types)}; {layers} of full_ or sliding_attention", "layer_types")
    if "sliding_attention" in types and window is None:
        said = "`layer_types` has sliding_attention and `sliding_window` is missing"
        fields.error("BU121", said, "sliding_window", stops="")
    of_layers = [window if kind == "sliding_attention" else None for kind in types[:layers]]
    return (*of_layers, *[None] * (layers - len(of_layers)))  # the number of layers is not for this key to say


def sliding_window(fields: Fields, absent: int | None = None) -> int | None:
    """`sliding_window`, in tokens."""
    fields.read.add("sliding_window")
    window = fields.maybe("sliding_window", int) if "sliding_window" in fields.raw else absent
    if window is not None and window < 1:
        said = f"`sliding_window` is {window}; a window holds at least 1 token"
        fields.error("BU121", said, "sliding_window", stops="")
    return window


class PreNormLayer(Module):
    """x + attention(norm(x)), then x + mlp(norm(x)) (Xiong et al. 2020)."""

    def __init__(self, m: int, eps: float, attention: Module, mlp: Module) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(m, eps)
        self.self_attn = attention
        self.post_attention_layernorm = RMSNorm(m, eps)
        self.mlp = mlp

    def forward(self, x_Nm: Tensor, cos: Tensor, sin: Tensor, step: Step) -> Tensor:
        x_Nm = x_Nm + self.self_attn(self.input_layernorm(x_Nm), cos, sin, step)
        return x_Nm + self.mlp(self.post_attention_layernorm(x_Nm))


class Decoder(Module):
    def __init__(self, config: DecoderConfig, layers: list[Module]) -> None:
        super().__init__()
        self.embed_tokens = Embedding("vocab m", vocab=config.vocab_size, m=config.hidden)
        self.layers = layers
        self.norm = RMSNorm(config.hidden, config.eps)
        self.rotary = rope_rows(config.rope, config.head_dim)


class CausalLM(Graph):
    """Embedding, layers, norm and head, as transformers names them. A family says what its `layer`s are."""

    layer_path = "model.layers"

    def __init__(self, config: DecoderConfig, dtype: str = "float32") -> None:
        super().__init__(config, dtype)
        self.model = Decoder(config, [self.layer(config, index) for index in range(len(config.windows))])
        self.lm_head = Linear("out:vocab in:m", vocab=config.vocab_size, m=config.hidden, bias=False)

    def layer(self, config: Any, index: int) -> Module:
        raise NotImplementedError

    def prologue(self, step: Step) -> tuple[Tensor, ...]:
        return (self.model.embed_tokens(step.tokens), *self.model.rotary(step))

    def final(self, x_Nm: Tensor) -> Tensor:
        return self.model.norm(x_Nm)

    def epilogue(self, x_Rm: Tensor) -> Tensor:
        return self.lm_head(self.final(x_Rm))
