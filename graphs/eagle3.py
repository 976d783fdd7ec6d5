"""EAGLE-3 heads: a draft layer that reads a token and hidden states of several layers (arXiv 2503.01840).

N tokens of the step · R rows of logits · m hidden · s hidden of the main model · k its hidden states · v drafted tokens
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from bringup.graphs.config.fields import Fields
from bringup.graphs.config.hf_config import BlockConfig
from bringup.graphs.core.graph import HIDDEN, OWN, Graph, MainState
from bringup.graphs.core.module import Module, Param
from bringup.graphs.core.step import Step
from bringup.graphs.decoder import Decoder
from bringup.graphs.layers.attention import GroupedAttention
from bringup.graphs.layers.linear import Linear
from bringup.graphs.layers.mlp import GatedMLP
from bringup.graphs.layers.norm import RMSNorm
from bringup.graphs.llama import LlamaConfig
from bringup.graphs.qwen3 import Qwen3Config

if TYPE_CHECKING:
    from torch import Tensor

# Of a main model with n layers: after 2, n // 2 and n - 3 layers. SafeAILab/EAGLE, SGLang, vLLM and speculators agree.
DEFAULT_STATES: tuple[MainState, ...] = (2, "middle", -4)
# `eagle_config` as NVIDIA's ModelOpt writes it: the values of a head with these parts.
EAGLE_CONFIG: Mapping[str, tuple[Any, ...]] = {
    "use_aux_hidden_state": (True,),
    "use_input_layernorm_in_first_layer": (True, None),
    "use_last_layernorm": (True, None),
    "use_mtp_layernorm": (False, None),
    "next_layer_regular": (True, None),
    "parallel_draft_step": (1, None),
    "parallel_draft_heads_num_layers": (0, 1, None),
}
FcNorm = Literal["", "whole", "each"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Eagle3Config(BlockConfig):
    """`block` is the config of the head's layer, whose vocabulary is the main model's.

    `drafted` tokens of the vocabulary have logits. `states` are the hidden states of the main model that the input
    `hidden` concatenates, of `main_hidden` channels each. `fc_norm`: a norm of "each" of them, or of all, before `fc`.
    `norm_before_residual`: the residual of the layer is its normalised input. `norm_output`: the head's own hidden
    state is its output after the last norm, instead of before it.
    """

    family: ClassVar[str] = "eagle3"
    drafts_for: ClassVar[tuple[str, ...]] = ("LlamaForCausalLM",)  # in the EAGLE repository's heads

    block: LlamaConfig | Qwen3Config
    drafted: int
    main_hidden: int
    states: tuple[MainState, ...]
    fc_norm: FcNorm
    norm_before_residual: bool
    norm_output: bool

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        """From the config.json of a head for SGLang or vLLM, or of the speculators library.

        The latter has the layer's keys in `transformer_layer_config`. There, `norm_before_residual` has no default:
        speculators' is false, vLLM's is true.
        """
        speculators = "transformer_layer_config" in fields.raw
        layer = fields
        if speculators:
            at = "transformer_layer_config"
            layer = Fields(fields.group(at), cls.family, fields.allowed, at=f"{at}.")
            fields.only("speculators_model_type", "eagle3")
            fields.read |= {"speculators_config", "speculators_version", "has_no_defaults_at_init"}
            fields.read |= {"embed_requires_grad", "tie_word_embeddings"}
        block = _block(layer)
        norm_each, norm_whole = fields.get("fc_norm", bool, False), fields.get("norm_before_fc", bool, False)
        if norm_each and norm_whole:
            fields.error("BU121", "`fc_norm` and `norm_before_fc` exclude each other", "fc_norm", stops="")
        found = cls(
            block=block,
            drafted=fields.size("draft_vocab_size", block.vocab_size, null=block.vocab_size, maximum=block.vocab_size),
            main_hidden=fields.size("target_hidden_size", block.hidden, null=block.hidden),
            states=_states(fields),
            fc_norm="each" if norm_each else "whole" if norm_whole else "",
            norm_before_residual=fields.get("norm_before_residual", bool, None if speculators else False),
            norm_output=fields.get("norm_output", bool, False),
        )
        fields.findings += layer.done() if speculators else []
        return found


def _block(fields: Fields) -> LlamaConfig | Qwen3Config:
    """The config of the layer. Its `attention_bias` is also that of the projection of the output, as in vLLM."""
    fields.only("num_hidden_layers", 1)
    fields.only("bias", False)  # EAGLE-1's key: SGLang reads it as a bias of `fc`, vLLM as one of attention
    fields.only("use_sliding_window", False)
    fields.read |= {"max_window_layers", "target_model_type"}
    kind = fields.choice("model_type", ("llama", "qwen3"), "llama")
    return (Qwen3Config if kind == "qwen3" else LlamaConfig).from_fields(fields)


def _states(fields: Fields) -> tuple[MainState, ...]:
    """The hidden states of the main model, by the number of layers before each.

    `eagle_aux_hidden_state_layer_ids` of speculators and vLLM counts in this way. In `eagle_config`, a key of SGLang,
    SpecForge and ModelOpt, the same key numbers layers from 0, whose outputs are meant: one less.
    """
    key = "eagle_aux_hidden_state_layer_ids"
    inner = Fields(fields.group("eagle_config"), fields.family, fields.allowed, at="eagle_config.")
    of_outputs = inner.indices(key)
    for name, known in EAGLE_CONFIG.items():
        inner.only(name, *known)
    fields.findings += inner.done()
    stated = fields.indices(key) or tuple(index + 1 for index in of_outputs)
    if any(number < 0 for number in stated):
        fields.error("BU121", f"`{key}` has a negative number", key, stops="")
        return DEFAULT_STATES
    return stated or DEFAULT_STATES


class Eagle3Layer(Module):
    """A decoder layer whose attention reads the embedded token and the hidden state, each after a norm."""

    def __init__(self, config: Eagle3Config) -> None:
        super().__init__()
        block, m = config.block, config.block.hidden
        bias = block.attention_bias
        self.norm_before_residual = config.norm_before_residual
        self.input_layernorm = RMSNorm(m, block.eps)
        self.hidden_norm = RMSNorm(m, block.eps)
        self.self_attn = GroupedAttention(
            m, block.num_heads, block.num_kv_heads, block.head_dim, inputs=2 * m, bias=bias, out_bias=bias,
            qk_norm=block.eps if isinstance(block, Qwen3Config) else None, window=block.windows[0],
        )  # fmt: skip
        self.post_attention_layernorm = RMSNorm(m, block.eps)
        self.mlp = GatedMLP(m, block.ffn, block.activation, bias=isinstance(block, LlamaConfig) and block.mlp_bias)

    def forward(self, x_Nm: Tensor, token_Nm: Tensor, cos: Tensor, sin: Tensor, step: Step) -> Tensor:
        import torch

        normed_Nm = self.hidden_norm(x_Nm)
        both = torch.cat((self.input_layernorm(token_Nm), normed_Nm), -1)
        x_Nm = (normed_Nm if self.norm_before_residual else x_Nm) + self.self_attn(both, cos, sin, step)
        return x_Nm + self.mlp(self.post_attention_layernorm(x_Nm))


class Head(Decoder):
    """The layer, with `fc`, which maps the main model's hidden states to one."""

    def __init__(self, config: Eagle3Config) -> None:
        super().__init__(config.block, [Eagle3Layer(config)])
        k, s, eps = len(config.states), config.main_hidden, config.block.eps
        self.input_norm = RMSNorm(k * s, eps) if config.fc_norm == "whole" else None
        self.fc_norm = [RMSNorm(s, eps) for _ in config.states] if config.fc_norm == "each" else None
        self.fc = Linear("out:m in:(k s)", m=config.block.hidden, k=k, s=s, bias=False)

    def combined(self, hidden: Tensor) -> Tensor:
        """One hidden state [N, m] of the main model's [N, k s]; zeros of zeros."""
        import torch

        if self.input_norm is not None:
            hidden = self.input_norm(hidden)
        if self.fc_norm is not None:
            parts = hidden.chunk(len(self.fc_norm), -1)
            hidden = torch.cat([norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)], -1)
        return self.fc(hidden)


class Eagle3(Graph):
    """Row i reads token i + 1, and at row i the hidden states of the main model, or the head's own hidden state.

    A row has zeros for the one that it does not read: `hidden` for the head's own proposals, `own` for all other rows.
    The logits of tokens that the head never proposes are -infinity.
    """

    layer_path = "model.layers"

    def __init__(self, config: Eagle3Config, dtype: str = "float32") -> None:
        super().__init__(config, dtype)
        self.model = Head(config)
        m, drafted, tokens = config.block.hidden, config.drafted, config.vocab_size
        self.lm_head = Linear("out:vocab in:m", vocab=drafted, m=m, bias=False)
        self.rows = Param("token", token=tokens, dtype="int64") if drafted < tokens else None
        self.norm_output = config.norm_output
        self.channels = {HIDDEN: len(config.states) * config.main_hidden, OWN: m}
        self.read_states = config.states

    @property
    def inputs(self) -> Mapping[str, int]:
        return self.channels

    @property
    def main_states(self) -> Sequence[MainState]:
        return self.read_states

    def prologue(self, step: Step, *inputs: Tensor) -> tuple[Tensor, ...]:
        hidden, own_Nm = inputs
        return (self.model.combined(hidden) + own_Nm, self.model.embed_tokens(step.tokens), *self.model.ropes(step))

    def final(self, x_Nm: Tensor) -> Tensor:
        return self.model.norm(x_Nm) if self.norm_output else x_Nm

    def epilogue(self, x_Rm: Tensor) -> Tensor:
        logits_Rv = self.lm_head(self.model.norm(x_Rm))
        if self.rows is None:
            return logits_Rv
        return logits_Rv.index_select(1, self.rows.clamp(min=0)).masked_fill(self.rows < 0, float("-inf"))
