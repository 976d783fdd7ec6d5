"""Falcon-H1: Mamba 2 and attention in parallel in each layer, then a gated MLP; factors of most results.

Names and formulas: transformers' modeling_falcon_h1.py. N tokens of the step · m hidden · R rows of logits
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

from bringup.graphs.config.fields import Fields
from bringup.graphs.config.mamba import MambaConfig
from bringup.graphs.core.module import Module
from bringup.graphs.core.step import Step
from bringup.graphs.decoder import CausalLM, DecoderConfig, read_common
from bringup.graphs.layers.attention import GroupedAttention
from bringup.graphs.layers.mamba2 import Mamba2
from bringup.graphs.layers.mlp import GatedMLP
from bringup.graphs.layers.norm import RMSNorm
from bringup.graphs.ops.activation import scaled

if TYPE_CHECKING:
    from torch import Tensor

# Factors of the embedding, of the logits, and of what goes into and comes out of the two mixers of a layer.
FACTORS = (
    "embedding_multiplier", "lm_head_multiplier", "attention_in_multiplier", "attention_out_multiplier",
    "ssm_in_multiplier", "ssm_out_multiplier",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class FalconH1Config(DecoderConfig):
    """`query_scale` contains the factor of the keys. `mlp_multipliers` are `GatedMLP.factors`."""

    family: ClassVar[str] = "falcon_h1"
    model_types: ClassVar[tuple[str, ...]] = ("falcon_h1",)

    attention_bias: bool
    mlp_bias: bool
    mamba: MambaConfig
    mlp_multipliers: tuple[float, float]
    embedding_multiplier: float
    lm_head_multiplier: float
    attention_in_multiplier: float
    attention_out_multiplier: float
    ssm_in_multiplier: float
    ssm_out_multiplier: float

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        windows = (None,) * fields.layers("num_hidden_layers")
        absent: dict[str, Any] = {"max_positions": 8192, "ffn": 14_336, "eps": 1e-5, "kv_heads": 8}
        common = read_common(fields, windows, nulls=("num_key_value_heads",), **absent)
        common["query_scale"] = fields.positive("key_multiplier", 1.0) * common["head_dim"] ** -0.5
        _read_unused(fields)
        of_gate, of_result = _factors(fields, "mlp_multipliers", 2)
        factors: dict[str, Any] = {key: fields.positive(key, 1.0) for key in FACTORS}
        return cls(
            **common,
            attention_bias=fields.get("attention_bias", bool, False),
            mlp_bias=fields.get("mlp_bias", bool, False),
            mamba=_mamba(fields, common["hidden"]),
            mlp_multipliers=(of_gate, of_result),
            **factors,
        )


def _mamba(fields: Fields, hidden: int) -> MambaConfig:
    first = fields.get("mamba_norm_before_gate", bool, True, null=False)
    normed = fields.get("mamba_rms_norm", bool, False, null=False)
    return replace(
        MambaConfig.from_fields(fields, hidden, width=1024),
        out_bias=fields.get("projectors_bias", bool, False, null=False),
        norm=("before" if first else "after") if normed else "none",
        factors=_factors(fields, "ssm_multipliers", 5),
    )


def _factors(fields: Fields, key: str, count: int) -> tuple[float, ...]:
    """The numbers of a list; each is 1 if the list is absent or null."""
    fields.read.add(key)
    found = () if fields.raw.get(key) is None else fields.numbers(key)
    if found and len(found) != count:
        fields.error("BU121", f"config key `{key}` has {len(found)} numbers; falcon_h1 needs {count}", key, stops="")
    return found if len(found) == count else (1.0,) * count


def _read_unused(fields: Fields) -> None:
    """Keys that transformers does not read; with other values, its code is not the model's."""
    fields.only("attn_layer_indices", None)
    fields.only("sliding_window", None)
    fields.only("mamba_use_mlp", True)
    # `intermediate_size` is not that of these either
    fields.optional("mlp_expansion_factor", float)
    fields.optional("expansion_factor", float)


class ParallelLayer(Module):
    """x + mixer(norm(x)) + attention(norm(x)), then x + mlp(norm(x)); each mixer's input and output have a factor."""

    def __init__(self, config: FalconH1Config) -> None:
        super().__init__()
        m, h, g, d, bias = config.hidden, config.num_heads, config.num_kv_heads, config.head_dim, config.attention_bias
        self.of_mixer = (config.ssm_in_multiplier, config.ssm_out_multiplier)
        self.of_attention = (config.attention_in_multiplier, config.attention_out_multiplier)
        self.input_layernorm = RMSNorm(m, config.eps)
        self.mixer = Mamba2(m, config.mamba, eps=config.eps, activation=config.activation)
        self.self_attn = GroupedAttention(m, h, g, d, bias=bias, out_bias=bias, scale=config.query_scale)
        self.post_attention_layernorm = RMSNorm(m, config.eps)
        self.mlp = GatedMLP(m, config.ffn, config.activation, bias=config.mlp_bias, factors=config.mlp_multipliers)

    def forward(self, x_Nm: Tensor, cos: Tensor, sin: Tensor, step: Step) -> Tensor:
        normed_Nm = self.input_layernorm(x_Nm)
        into, out = self.of_mixer
        mixed_Nm = scaled(self.mixer(scaled(normed_Nm, into), step), out)
        into, out = self.of_attention
        attended_Nm = scaled(self.self_attn(scaled(normed_Nm, into), cos, sin, step), out)
        x_Nm = x_Nm + (mixed_Nm + attended_Nm)
        return x_Nm + self.mlp(self.post_attention_layernorm(x_Nm))


class FalconH1(CausalLM):
    def __init__(self, config: FalconH1Config, dtype: str = "float32") -> None:
        super().__init__(config, dtype)
        self.embedding_multiplier, self.lm_head_multiplier = config.embedding_multiplier, config.lm_head_multiplier

    def layer(self, config: FalconH1Config, index: int) -> ParallelLayer:
        return ParallelLayer(config)

    def prologue(self, step: Step) -> tuple[Tensor, ...]:
        x_Nm, *rows = super().prologue(step)
        return (scaled(x_Nm, self.embedding_multiplier), *rows)

    def epilogue(self, x_Rm: Tensor) -> Tensor:
        return scaled(super().epilogue(x_Rm), self.lm_head_multiplier)
