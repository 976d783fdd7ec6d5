"""Granite 4: Mamba 2 in most layers, attention with or without RoPE in the others, MoE and a shared MLP.

Names and formulas: transformers' modeling_granitemoehybrid.py. N tokens of the step · m hidden · R rows of logits
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Self

from bringup.graphs.config.aliases import read_alias
from bringup.graphs.config.fields import MOST_EXPERTS, Fields
from bringup.graphs.config.mamba import MambaConfig
from bringup.graphs.core.module import Module
from bringup.graphs.core.step import Step
from bringup.graphs.decoder import CausalLM, DecoderConfig, PreNormLayer, RecurrentLayer, read_common
from bringup.graphs.layers.attention import GroupedAttention
from bringup.graphs.layers.mamba2 import Mamba2
from bringup.graphs.layers.mlp import GatedMLP
from bringup.graphs.layers.moe_softmax import SparseMLP
from bringup.shown import shown

if TYPE_CHECKING:
    from torch import Tensor

RECURRENT, ATTENTION = ("mamba", "linear_attention"), ("attention", "full_attention")  # older names, and newer ones


@dataclass(frozen=True, slots=True, kw_only=True)
class GraniteMoeHybridConfig(DecoderConfig):
    """`recurrent` is whether each layer has Mamba 2 instead of attention. `ffn` is the width of an expert; without
    experts, layers have only the shared MLP. Logits are divided by `logit_divisor`."""

    family: ClassVar[str] = "granitemoehybrid"
    model_types: ClassVar[tuple[str, ...]] = ("granitemoehybrid",)

    attention_bias: bool
    recurrent: tuple[bool, ...]
    mamba: MambaConfig
    num_experts: int
    experts_per_token: int
    shared_ffn: int
    embedding_multiplier: float
    residual_multiplier: float
    logit_divisor: float

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        read_alias(fields, "layers_block_type", "layer_types")
        recurrent = _recurrent(fields, fields.layers("num_hidden_layers"))
        experts = fields.experts("num_local_experts", 8, minimum=0)
        # transformers uses rope for this value only; published files have "nope"
        fields.only("position_embedding_type", None, "rope", "nope")
        rope = fields.raw.get("position_embedding_type") == "rope"
        nulls = ("num_key_value_heads",)
        common = read_common(fields, (None,) * len(recurrent), ffn=11008, nulls=nulls, with_rope=rope)
        common["query_scale"] = fields.positive("attention_multiplier", 1.0, null=common["head_dim"] ** -0.5)
        # transformers does not read these; with other values, its code is not the model's
        fields.only("normalization_function", "rmsnorm")
        fields.only("mlp_bias", False)
        return cls(
            **common,
            attention_bias=fields.get("attention_bias", bool, False),
            recurrent=recurrent,
            mamba=MambaConfig.from_fields(fields, common["hidden"]),
            num_experts=experts,
            experts_per_token=fields.size(
                "num_experts_per_tok",
                2,
                null=None if experts else 0,
                minimum=min(experts, 1),
                maximum=experts or MOST_EXPERTS,
            ),
            shared_ffn=fields.size("shared_intermediate_size", 1024),
            embedding_multiplier=fields.positive("embedding_multiplier", 1.0),
            residual_multiplier=fields.positive("residual_multiplier", 1.0),
            logit_divisor=fields.positive("logits_scaling", 1.0),
        )


def _recurrent(fields: Fields, layers: int) -> tuple[bool, ...]:
    """By `layer_types`; by default every layer is recurrent."""
    types = fields.strings("layer_types")
    if types is None:
        return (True,) * layers
    if len(types) != layers or not set(types) <= {*RECURRENT, *ATTENTION}:
        message = f"`layer_types` is {shown(types)}; {layers} of mamba or attention"
        fields.error("BU122", message, "layer_types")
        return (True,) * layers
    return tuple(kind in RECURRENT for kind in types)


class SparseAndShared(SparseMLP):
    """Adds an MLP that computes every token."""

    def __init__(self, config: GraniteMoeHybridConfig) -> None:
        e, k, m = config.num_experts, config.experts_per_token, config.hidden
        super().__init__(e, m, config.ffn, config.activation, per_token=k, normalise=True)
        self.shared_mlp = GatedMLP(m, config.shared_ffn, config.activation)

    def forward(self, x_Nm: Tensor) -> Tensor:
        return super().forward(x_Nm) + self.shared_mlp(x_Nm)


class GraniteMoeHybrid(CausalLM):
    def __init__(self, config: GraniteMoeHybridConfig, dtype: str = "float32") -> None:
        super().__init__(config, dtype)
        self.embedding_multiplier, self.logit_divisor = config.embedding_multiplier, config.logit_divisor

    def layer(self, config: GraniteMoeHybridConfig, index: int) -> Module:
        m, eps, residual = config.hidden, config.eps, config.residual_multiplier
        mlp = SparseAndShared(config) if config.num_experts else GatedMLP(m, config.shared_ffn, config.activation)
        if config.recurrent[index]:
            mixer = Mamba2(m, config.mamba, eps=eps, activation=config.activation)
            return RecurrentLayer(m, eps, mixer, mlp, residual=residual)
        h, g, d, bias = config.num_heads, config.num_kv_heads, config.head_dim, config.attention_bias
        attention = GroupedAttention(m, h, g, d, bias=bias, out_bias=bias, scale=config.query_scale)
        return PreNormLayer(m, eps, attention, mlp, residual=residual)

    def prologue(self, step: Step) -> tuple[Tensor, ...]:
        x_Nm, *rows = super().prologue(step)
        return (x_Nm * self.embedding_multiplier, *rows)

    def epilogue(self, x_Rm: Tensor) -> Tensor:
        return super().epilogue(x_Rm) / self.logit_divisor
