"""Qwen3-Next: gated DeltaNet, in every fourth layer attention with an output gate, and MoE with a shared expert."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

from bringup.graphs.config.fields import Fields
from bringup.graphs.config.moe import read_shared_experts, sparse_layers
from bringup.graphs.core.module import Module
from bringup.graphs.hybrid import Hybrid, HybridMoeConfig, read_hybrid
from bringup.graphs.qwen2_moe import mlp_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Qwen3NextConfig(HybridMoeConfig):
    """`ffn` is the width of the MLP in layers that are not `sparse`."""

    family: ClassVar[str] = "qwen3_next"
    model_types: ClassVar[tuple[str, ...]] = ("qwen3_next",)

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        layers, experts = fields.layers("num_hidden_layers"), fields.experts("num_experts", 512, minimum=0)
        fields.only("use_sliding_window", False)  # published, but transformers does not read it
        return cls(
            **read_hybrid(fields, layers, kv_heads=2),
            **read_shared_experts(fields, experts, ffn=512, shared=512, per_token=10),
            sparse=sparse_layers(fields, layers, experts),
            normalise=fields.get("norm_topk_prob", bool, True),
        )


class Qwen3Next(Hybrid):
    def mlp(self, config: Qwen3NextConfig, index: int) -> Module:
        return mlp_of(config, config.sparse[index])
