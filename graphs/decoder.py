"""The parts that most published decoders share: config keys, the layer, and the model around it.

A family defines its attention, its MLP and settings of these parts. N tokens of the step · m hidden · vocab.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from bringup.graphs.config.fields import MOST_ELEMENTS, Fields
from bringup.graphs.config.hf_config import HFConfig
from bringup.graphs.config.rope import RopeConfig
from bringup.graphs.config.rope_by_layer_type import ropes_by_layer_type
from bringup.graphs.core.graph import Graph
from bringup.graphs.core.module import Module
from bringup.graphs.core.step import Step
from bringup.graphs.layers.embedding import Embedding
from bringup.graphs.layers.linear import Linear
from bringup.graphs.layers.norm import Norm, RMSNorm
from bringup.graphs.layers.rotary import rope_rows
from bringup.graphs.ops.activation import ACTIVATIONS, scaled, soft_cap

if TYPE_CHECKING:
    from torch import Tensor


NO_KEYS: Mapping[str, str] = {}
NO_CAPS: Mapping[str, float | None] = {}
# Keys for the length of the context besides `max_position_embeddings`: those of SGLang's `get_context_length`.
CONTEXT_KEYS = ("max_sequence_length", "seq_length", "max_seq_len", "model_max_length")


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderConfig(HFConfig):
    """The config of a decoder with rope, grouped key heads and a gated MLP.

    `windows` is the sliding window of each layer; None is full attention. `local_rope` is the rope of layers with a
    window, if it differs from that of the others. `query_scale` multiplies the scores, None is 1 / √head_dim;
    `score_cap` and `logit_cap` cap scores and logits (`ops.activation.soft_cap`). `embedding_scale` multiplies the
    embedded tokens. Without `with_rope`, no layer rotates queries and keys.
    """

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
    local_rope: RopeConfig | None = None
    query_scale: float | None = None
    score_cap: float | None = None
    logit_cap: float | None = None
    embedding_scale: float | None = None
    with_rope: bool = True


def read_common(
    fields: Fields,
    windows: tuple[int | None, ...],
    *,
    max_positions: int = 2048,
    kv_heads: int | None = None,
    head_dim: int | None = None,
    ffn: int | None = None,
    eps: float | None = 1e-6,
    tied: bool = False,
    keys: Mapping[str, str] = NO_KEYS,
    nulls: Collection[str] = (),
    scaled_positions: bool = False,
    activation: str = "silu",
    caps: Mapping[str, float | None] = NO_CAPS,
    query_scalar: int | None = None,
    local_theta: float | None = None,
    local_theta_key: str = "rope_local_base_freq",
    context_keys: Sequence[str] = CONTEXT_KEYS,
    with_rope: bool = True,
    **rope: Any,
) -> dict[str, Any]:
    """The fields of `DecoderConfig`, from the keys that transformers has for them, with its defaults.

    The settings are the family's defaults for absent keys; `rope` are those of `RopeConfig.from_hf`. `keys` maps
    transformers' keys for the sizes of a head and of the MLP, the activation, the epsilon of norms and the tied head to
    the family's own. `nulls`: which of `num_key_value_heads` and `head_dim` may be null; they then follow from other
    sizes. `scaled_positions`: `max_position_embeddings` counts the positions after rope scaling, as in Gemma 3.
    `context_keys`: further keys for the length of the context, except those that the family reads itself. Without
    `with_rope`, rope may be any that transformers has.

    Some keys are read only if their default is passed: `caps` has those of `attn_logit_softcapping` and
    `final_logit_softcapping` (null in a config means no cap), `query_scalar` that of `query_pre_attn_scalar`, and
    `local_theta` that of `local_theta_key`, if rope differs by layer type (`ropes_by_layer_type`).
    """
    hidden, heads = fields.size("hidden_size"), fields.size("num_attention_heads")
    shared = heads if "num_key_value_heads" in nulls else None
    kv = fields.size("num_key_value_heads", kv_heads or heads, null=shared)
    if not fields.doubtful and heads % kv:
        message = f"{heads} heads cannot share {kv} key heads evenly"
        fields.error("BU121", message, "num_key_value_heads", stops="")
    width = 2 if fields.stopped else head_dim or hidden // heads
    d = fields.size(keys.get("head_dim", "head_dim"), width, null=width if "head_dim" in nulls else None)
    stated = fields.size("max_position_embeddings", max_positions)
    rotated = d if with_rope else 2 * d  # an even number of channels, which rope can rotate
    if local_theta is None:
        rope_config, local = RopeConfig.from_hf(fields, rotated, stated, **rope), None
    else:
        of_windows: dict[str, Any] = {"local_theta": local_theta, "local_theta_key": local_theta_key}
        rope_config, local = ropes_by_layer_type(fields, rotated, stated, **of_windows, **rope)
    scaled = with_rope and not scaled_positions
    scalar = None if query_scalar is None else fields.size("query_pre_attn_scalar", query_scalar)
    score_cap, logit_cap = (_cap(fields, key, caps) for key in ("attn_logit_softcapping", "final_logit_softcapping"))
    return dict(
        vocab_size=fields.size("vocab_size"),
        max_positions=_longest(fields, context_length(rope_config, stated) if scaled else stated, context_keys),
        hidden=hidden,
        ffn=fields.size(keys.get("intermediate_size", "intermediate_size"), ffn),
        num_heads=heads,
        num_kv_heads=kv,
        head_dim=d,
        activation=fields.choice(keys.get("hidden_act", "hidden_act"), ACTIVATIONS, activation),
        eps=fields.positive(keys.get("rms_norm_eps", "rms_norm_eps"), eps),
        rope=rope_config,
        tied_head=fields.get(keys.get("tie_word_embeddings", "tie_word_embeddings"), bool, tied),
        windows=windows,
        local_rope=local,
        query_scale=None if scalar is None else scalar**-0.5,
        score_cap=score_cap,
        logit_cap=logit_cap,
        with_rope=with_rope,
    )


def _cap(fields: Fields, key: str, absent: Mapping[str, float | None]) -> float | None:
    """The cap of scores or logits, None for no cap. Without a default of the family, the key is not read."""
    if key not in absent:
        return None
    fields.read.add(key)
    if key not in fields.raw:
        return absent[key]
    return None if fields.raw[key] is None else fields.positive(key)


def _longest(fields: Fields, derived: int, keys: Sequence[str]) -> int:
    """The shortest length that a config states with one of these keys, else the derived length.

    `derived` follows from `max_position_embeddings`. If the config has none, it is only the family's default, and the
    first of these keys replaces it. A longer length is a warning otherwise. These lengths are after rope scaling.
    """
    first = "max_position_embeddings"
    source = first if fields.raw.get(first) is not None else ""  # the key that states `derived`
    for key in keys:
        longest = fields.size(key, derived, null=derived)
        if fields.raw.get(key) is None:
            continue
        if source and longest > derived:
            fields.overridden(key, longest, fields.path(source), derived)
        elif not source or longest < derived:
            source, derived = key, longest
    return derived


def context_length(rope: RopeConfig, stated: int) -> int:
    """The longest sequence, in tokens: the length in the config, multiplied by the scaling factor of rope.

    If a config states the original length, or for `llama3`, `max_position_embeddings` is already scaled: SGLang's rule
    (`get_context_length`).
    """
    return max(1, int(min(stated * rope.context_factor, MOST_ELEMENTS)))


class PreNormLayer(Module):
    """x + attention(norm(x)), then x + mlp(norm(x)) (Xiong et al. 2020).

    `norms` is the position of the norms: "before" attention and MLP; "around", with another one on the output of each
    (Gemma 2 report, section 2); or "after", on the outputs only (OLMo 2 report, section 3.3). Names are transformers'.
    `norm` is the class of the norms. `rope` is the index of the layer's (cos, sin) among those that all layers share.
    `residual` multiplies what attention and MLP add.
    """

    def __init__(
        self,
        m: int,
        eps: float,
        attention: Module,
        mlp: Module,
        *,
        norm: Norm = RMSNorm,
        norms: Literal["before", "around", "after"] = "before",
        rope: int = 0,
        residual: float = 1.0,
    ) -> None:
        super().__init__()
        self.norms, self.rope, self.residual = norms, rope, residual
        self.input_layernorm = None if norms == "after" else norm(m, eps)
        self.self_attn = attention
        self.post_attention_layernorm = norm(m, eps)
        self.pre_feedforward_layernorm = norm(m, eps) if norms == "around" else None
        self.mlp = mlp
        self.post_feedforward_layernorm = None if norms == "before" else norm(m, eps)

    def forward(self, x_Nm: Tensor, *shared: Any) -> Tensor:
        """`shared` is cos, sin, … of each rope of the model, and the step."""
        *rows, step = shared
        cos, sin = rows[2 * self.rope : 2 * self.rope + 2] if rows else (None, None)
        mixed_Nm = self.self_attn(_normed(self.input_layernorm, x_Nm), cos, sin, step)
        if self.norms == "before":
            x_Nm = x_Nm + scaled(mixed_Nm, self.residual)
            return x_Nm + scaled(self.mlp(self.post_attention_layernorm(x_Nm)), self.residual)
        x_Nm = x_Nm + scaled(self.post_attention_layernorm(mixed_Nm), self.residual)
        output_Nm = self.mlp(_normed(self.pre_feedforward_layernorm, x_Nm))
        return x_Nm + scaled(_normed(self.post_feedforward_layernorm, output_Nm), self.residual)


class RecurrentLayer(Module):
    """x + mixer(norm(x)), then x + mlp(norm(x)), for a mixer of tokens without positions, such as a convolution.

    The norms have the names that they have in a `PreNormLayer`, and `residual` is the same.
    """

    def __init__(
        self, m: int, eps: float, mixer: Module, mlp: Module, *, norm: Norm = RMSNorm, residual: float = 1.0
    ) -> None:
        super().__init__()
        self.residual = residual
        self.input_layernorm = norm(m, eps)
        self.mixer = mixer
        self.post_attention_layernorm = norm(m, eps)
        self.mlp = mlp

    def forward(self, x_Nm: Tensor, *shared: Any) -> Tensor:
        """`shared` is that of a `PreNormLayer`; its last item is the step."""
        x_Nm = x_Nm + scaled(self.mixer(self.input_layernorm(x_Nm), shared[-1]), self.residual)
        return x_Nm + scaled(self.mlp(self.post_attention_layernorm(x_Nm)), self.residual)


def _normed(norm: Module | None, x_Nm: Tensor) -> Tensor:
    return x_Nm if norm is None else norm(x_Nm)


class Decoder(Module):
    """The embedding, the layers, the last norm (of class `norm`), and the cos and sin rows of each rope."""

    def __init__(self, config: DecoderConfig, layers: list[Module], norm: Norm = RMSNorm) -> None:
        super().__init__()
        scale = config.embedding_scale
        self.embed_tokens = Embedding("vocab m", scale=scale, vocab=config.vocab_size, m=config.hidden)
        self.layers = layers
        self.norm = norm(config.hidden, config.eps)
        self.rotary = rope_rows(config.rope, config.head_dim) if config.with_rope else None
        self.rotary_local = rope_rows(config.local_rope, config.head_dim) if config.local_rope else None

    def ropes(self, step: Step) -> tuple[Tensor, ...]:
        """cos and sin of each rope, float32 [N, pairs] each."""
        each = (rotary for rotary in (self.rotary, self.rotary_local) if rotary is not None)
        return tuple(rows for rotary in each for rows in rotary(step))


class CausalLM(Graph):
    """Embedding, layers, norm and head, as transformers names them. A family defines `layer`.

    `norm` is the class of the last norm. A layer with a window uses rope 1 if the config has a `local_rope`.
    """

    layer_path = "model.layers"
    norm: ClassVar[Norm] = RMSNorm

    def __init__(self, config: DecoderConfig, dtype: str = "float32") -> None:
        super().__init__(config, dtype)
        self.logit_cap = config.logit_cap
        self.model = Decoder(config, self.all_layers(config), self.norm)
        self.lm_head = Linear("out:vocab in:m", vocab=config.vocab_size, m=config.hidden, bias=False)

    def all_layers(self, config: Any) -> list[Module]:
        return [self.layer(config, index) for index in range(len(config.windows))]

    def layer(self, config: Any, index: int) -> Module:
        raise NotImplementedError

    def prologue(self, step: Step) -> tuple[Tensor, ...]:
        return (self.model.embed_tokens(step.tokens), *self.model.ropes(step))

    def final(self, x_Nm: Tensor) -> Tensor:
        return self.model.norm(x_Nm)

    def epilogue(self, x_Rm: Tensor) -> Tensor:
        return soft_cap(self.lm_head(self.final(x_Rm)), self.logit_cap)
