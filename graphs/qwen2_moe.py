"""Qwen1.5-MoE and Qwen2-MoE: Qwen2 with MoE layers, and a shared expert with a gate (Qwen2 report §2.2.2).

`m` hidden, `s` the one value of the gate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

from bringup.graphs.config.fields import Fields
from bringup.graphs.config.moe import read_shared_experts, sparse_layers
from bringup.graphs.config.windows import switched_window, window_of_layers
from bringup.graphs.decoder import CausalLM, DecoderConfig, PreNormLayer, read_common
from bringup.graphs.layers.attention import GroupedAttention
from bringup.graphs.layers.linear import Linear
from bringup.graphs.layers.mlp import GatedMLP
from bringup.graphs.layers.moe_softmax import SparseMLP

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Qwen2MoeConfig(DecoderConfig):
    """`ffn` is the width of the MLP in layers that are not `sparse`, `expert_ffn` that of each routed expert."""

    family: ClassVar[str] = "qwen2_moe"
    model_types: ClassVar[tuple[str, ...]] = ("qwen2_moe",)

    attention_bias: bool
    sparse: tuple[bool, ...]
    expert_ffn: int
    shared_ffn: int
    num_experts: int
    experts_per_token: int
    normalise: bool

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        layers = fields.layers("num_hidden_layers")
        experts = fields.experts("num_experts", 60, minimum=0)
        return cls(
            **read_common(fields, _windows(fields, layers), max_positions=32768, kv_heads=16),
            attention_bias=fields.get("qkv_bias", bool, True),
            **read_shared_experts(fields, experts, ffn=1408, shared=5632, per_token=4),
            sparse=sparse_layers(fields, layers, experts),
            normalise=fields.get("norm_topk_prob", bool, False),
        )


def _windows(fields: Fields, layers: int) -> tuple[int | None, ...]:
    """The window of each layer: `layer_types`, or every other one before layer `max_window_layers`.

    Without `use_sliding_window` there are none, and transformers writes 0 for the size.
    """
    window, last = switched_window(fields, 4096), fields.get("max_window_layers", int, 28)
    if (of_layers := window_of_layers(fields, layers, window)) is not None:
        return of_layers
    if window is None and fields.raw.get("use_sliding_window"):
        fields.error("BU121", "`sliding_window` is null, and some layers have one", "sliding_window", stops="")
    return tuple(window if index % 2 == 0 and index < last else None for index in range(layers))


class SharedSparseMLP(SparseMLP):
    """Adds an expert that computes every token, weighted by the sigmoid of a gate."""

    def __init__(
        self, e: int, m: int, f: int, shared: int, activation: str, *, per_token: int, normalise: bool
    ) -> None:
        super().__init__(e, m, f, activation, per_token=per_token, normalise=normalise)
        self.shared_expert = GatedMLP(m, shared, activation)
        self.shared_expert_gate = Linear("out:s in:m", s=1, m=m, bias=False)

    def forward(self, x_Nm: Tensor) -> Tensor:
        weight_Ns = self.shared_expert_gate(x_Nm).sigmoid()
        return super().forward(x_Nm) + weight_Ns * self.shared_expert(x_Nm)


class Qwen2Moe(CausalLM):
    def layer(self, config: Qwen2MoeConfig, index: int) -> PreNormLayer:
        m, h, g, d = config.hidden, config.num_heads, config.num_kv_heads, config.head_dim
        attention = GroupedAttention(m, h, g, d, bias=config.attention_bias, window=config.windows[index])
        return PreNormLayer(m, config.eps, attention, mlp_of(config, config.sparse[index]))


def mlp_of(config: Any, sparse: bool) -> SharedSparseMLP | GatedMLP:
    """The MLP of a layer, for configs with the fields of `Qwen2MoeConfig`."""
    m, act = config.hidden, config.activation
    if not sparse:
        return GatedMLP(m, config.ffn, act)
    e, k = config.num_experts, config.experts_per_token
    return SharedSparseMLP(e, m, config.expert_ffn, config.shared_ffn, act, per_token=k, normalise=config.normalise)
