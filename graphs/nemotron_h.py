"""Nemotron-H, Nemotron 3: Mamba 2, attention without RoPE, an MLP or MoE in each layer.

Names and formulas: transformers' modeling_nemotron_h.py, except that it raises the dt of a prompt to `time_step_min`:
the published code does not (compile/parity/time_steps.py). N tokens of the step · m hidden · l latent of the experts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

from bringup.graphs.config.aliases import older_keys, read_alias
from bringup.graphs.config.fields import MOST_LAYERS, Fields
from bringup.graphs.config.mamba import UNLIMITED, MambaConfig
from bringup.graphs.config.moe import RoutingConfig
from bringup.graphs.core.module import Module
from bringup.graphs.decoder import CausalLM, DecoderConfig, read_common
from bringup.graphs.layers.attention import GroupedAttention
from bringup.graphs.layers.linear import Linear
from bringup.graphs.layers.mamba2 import Mamba2
from bringup.graphs.layers.moe_experts import Experts
from bringup.graphs.layers.moe_shared import SigmoidRouter
from bringup.graphs.layers.norm import Float32RMSNorm
from bringup.graphs.ops.activation import ACTIVATIONS
from bringup.shown import shown

if TYPE_CHECKING:
    from torch import Tensor

    from bringup.graphs.core.step import Step

PATTERN = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
LETTERS = "hybrid_override_pattern"
KINDS = {"linear_attention": "mamba", "full_attention": "attention"} | {kind: kind for kind in PATTERN.values()}
OLDER = {
    "n_groups": "mamba_n_groups", "conv_kernel": "mamba_d_conv", "use_conv_bias": "mamba_conv_bias",
    "expand": "mamba_expand", "chunk_size": "mamba_chunk_size", "time_step_limit": "mamba_dt_limit",
    "time_step_min": "mamba_dt_min",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class NemotronHConfig(DecoderConfig):
    """`kinds` is what each layer has, a value of `PATTERN`. `ffn` is the width of an MLP, `expert_ffn` that of a routed
    expert. Experts compute a projection of `latent` channels, without it all channels."""

    family: ClassVar[str] = "nemotron_h"
    model_types: ClassVar[tuple[str, ...]] = ("nemotron_h",)

    kinds: tuple[str, ...]
    mlp_bias: bool
    mamba: MambaConfig
    mamba_activation: str
    expert_ffn: int
    shared_ffn: int
    latent: int | None
    routing: RoutingConfig

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        kinds = _kinds(fields)
        names = {"hidden_act": "mlp_hidden_act", "rms_norm_eps": "layer_norm_epsilon"}
        absent: dict[str, Any] = {"max_positions": 4096, "ffn": 21504, "eps": 1e-5, "kv_heads": 8, "head_dim": 128}
        common = read_common(
            fields, (None,) * len(kinds), keys=names, activation="relu2", nulls=("num_key_value_heads",), partial=1.0,
            with_rope=False, **absent,
        )  # fmt: skip
        read_alias(fields, "num_local_experts", "n_routed_experts")
        routing = RoutingConfig.from_fields(
            fields, used="moe" in kinds, experts=8, per_token=2, groups=1, topk_groups=1, factor=1.0
        )
        _read_unused(fields, common)
        return cls(
            **common,
            kinds=kinds,
            mlp_bias=fields.get("mlp_bias", bool, False),
            mamba=_mamba(fields),
            mamba_activation=fields.choice("mamba_hidden_act", ACTIVATIONS, "silu"),
            expert_ffn=fields.size("moe_intermediate_size", 7688),
            shared_ffn=fields.size("moe_shared_expert_intermediate_size", 7688),
            latent=None if fields.optional("moe_latent_size", int) is None else fields.size("moe_latent_size"),
            routing=routing,
        )


def _kinds(fields: Fields) -> tuple[str, ...]:
    """By `layers_block_type`, else by the letters of `hybrid_override_pattern`, as in transformers."""
    fields.read.add("num_hidden_layers")
    read_alias(fields, "layer_types", "layers_block_type")
    key, types, letters = "layers_block_type", fields.strings("layers_block_type"), None
    if types is None or fields.optional(LETTERS, str) is not None:
        letters = [PATTERN.get(letter, letter) for letter in fields.get(LETTERS, str, "ME*-")]
    if types is None:
        key, types = LETTERS, letters or []
    kinds = tuple(KINDS[kind] for kind in types if kind in KINDS)
    if not 0 < len(types) == len(kinds) <= MOST_LAYERS:
        known = f"1 to {MOST_LAYERS} of {', '.join(PATTERN if key == LETTERS else KINDS)}"
        message = f"config sets `{key}` = {shown(fields.raw[key])}; the nemotron_h graph implements {known}"
        fields.error("BU122", message, key)
        return tuple(PATTERN.values())
    if letters is not None and letters != list(kinds):
        fields.overridden(LETTERS, fields.raw[LETTERS], fields.path(key), fields.raw[key])
    _check_number(fields, key, len(kinds))
    return kinds


def _check_number(fields: Fields, key: str, layers: int) -> None:
    """Compares `num_hidden_layers`, which transformers does not read, with the number of kinds that `key` states."""
    if fields.raw.get("num_hidden_layers") is not None and (stated := fields.layers("num_hidden_layers")) != layers:
        if key not in fields.raw:
            message = f"config sets `num_hidden_layers` = {stated}, but not what each has; the default has {layers}"
            fields.error("BU121", message, "num_hidden_layers", "add `hybrid_override_pattern` or `layers_block_type`")
        elif fields.valid(key):
            fields.overridden("num_hidden_layers", stated, fields.path(key), fields.raw[key])
    fields.raw = {**fields.raw, "num_hidden_layers": layers}  # limits the number of experts


def _mamba(fields: Fields) -> MambaConfig:
    names = {name: name for name in OLDER} | older_keys(fields, OLDER)
    heads, groups = fields.size("mamba_num_heads", 128), fields.size(names["n_groups"], 8)
    if not fields.doubtful and heads % groups:
        fields.error("BU121", f"{heads} heads do not make {groups} groups of the same size", names["n_groups"])
    # these do not affect the result: transformers has the number and the size of heads, and computes chunk by chunk
    fields.size(names["expand"], 2)
    fields.size(names["chunk_size"], 128)
    # with other values, transformers' code is not the model's
    fields.only(names["time_step_limit"], *UNLIMITED)
    fields.only(names["time_step_min"], 0.001)
    bias = fields.get("use_bias", bool, False)
    return MambaConfig(
        heads=heads,
        head_dim=fields.size("mamba_head_dim", 64),
        groups=groups,
        state_dim=fields.size("ssm_state_size", 128),
        taps=fields.size(names["conv_kernel"], 4),
        conv_bias=fields.get(names["use_conv_bias"], bool, True),
        bias=bias,
        out_bias=bias,
    )


def _read_unused(fields: Fields, common: dict[str, Any]) -> None:
    """Keys that transformers does not read, or that affect the layers that predict further tokens only."""
    # with other values, transformers' code is not the model's
    fields.only("attention_bias", False)
    fields.only("mamba_proj_bias", False)
    fields.only("n_shared_experts", 1)
    fields.only("sliding_window", None)
    fields.only("attention_head_dim", common["head_dim"])
    fields.only("num_query_groups", common["num_kv_heads"])
    fields.only("norm_eps", common["eps"])
    fields.only("rms_norm_eps", common["eps"])
    # dtypes of residuals and of cached states: the latter are float32 here
    fields.only("residual_in_fp32", False, True)
    fields.only("mamba_ssm_cache_dtype", "float32", "bfloat16", "float16", "auto")
    fields.size("num_nextn_predict_layers", 0, minimum=0)
    fields.strings("mtp_layers_block_type")
    fields.optional("mtp_hybrid_override_pattern", str)


class MLP(Module):
    """down(act(up(x))), as `layers.mlp.MLP` under other names."""

    def __init__(self, m: int, f: int, activation: str, *, bias: bool) -> None:
        super().__init__()
        self.activation = activation
        self.up_proj = Linear("out:f in:m", f=f, m=m, bias=bias)
        self.down_proj = Linear("out:m in:f", m=m, f=f, bias=bias)

    def forward(self, x_Nm: Tensor) -> Tensor:
        return self.down_proj(ACTIVATIONS[self.activation](self.up_proj(x_Nm)))


class Mixture(Module):
    """A shared MLP for every token, and routed MLPs without gates, of a projection if the experts have a `latent`."""

    def __init__(self, config: NemotronHConfig) -> None:
        super().__init__()
        m, activation, bias = config.hidden, config.activation, config.mlp_bias
        latent = config.latent
        self.gate = SigmoidRouter(m, config.routing)
        self.experts = Experts(config.routing.experts, latent or m, config.expert_ffn, activation, gated=False)
        self.shared_experts = MLP(m, config.shared_ffn, activation, bias=bias)
        self.fc1_latent_proj = Linear("out:l in:m", l=latent, m=m, bias=bias) if latent else None
        self.fc2_latent_proj = Linear("out:m in:l", m=m, l=latent, bias=bias) if latent else None

    def forward(self, x_Nm: Tensor) -> Tensor:
        selected_NK, weights_NK = self.gate(x_Nm)
        inputs = x_Nm if self.fc1_latent_proj is None else self.fc1_latent_proj(x_Nm)
        routed = self.experts(inputs, selected_NK, weights_NK)
        routed_Nm = routed if self.fc2_latent_proj is None else self.fc2_latent_proj(routed)
        return routed_Nm + self.shared_experts(x_Nm)


class MixerLayer(Module):
    """x + mixer(norm(x)). `kind` is what the mixer is: a value of `PATTERN`."""

    def __init__(self, m: int, eps: float, kind: str, mixer: Module) -> None:
        super().__init__()
        self.kind = kind
        self.norm = Float32RMSNorm(m, eps)
        self.mixer = mixer

    def forward(self, x_Nm: Tensor, step: Step) -> Tensor:
        normed_Nm = self.norm(x_Nm)
        match self.kind:
            case "mamba":
                mixed_Nm = self.mixer(normed_Nm, step)
            case "attention":
                mixed_Nm = self.mixer(normed_Nm, None, None, step)
            case _:
                mixed_Nm = self.mixer(normed_Nm)
        return x_Nm + mixed_Nm


class NemotronH(CausalLM):
    norm = Float32RMSNorm

    def layer(self, config: NemotronHConfig, index: int) -> MixerLayer:
        return MixerLayer(config.hidden, config.eps, config.kinds[index], _mixer(config, config.kinds[index]))


def _mixer(config: NemotronHConfig, kind: str) -> Module:
    m = config.hidden
    match kind:
        case "mamba":
            return Mamba2(m, config.mamba, eps=config.eps, activation=config.mamba_activation)
        case "attention":
            return GroupedAttention(m, config.num_heads, config.num_kv_heads, config.head_dim)
        case "moe":
            return Mixture(config)
        case _:
            return MLP(m, config.ffn, config.activation, bias=config.mlp_bias)
