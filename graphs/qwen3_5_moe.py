"""Text models of Qwen3.5-MoE and 3.6-MoE: Qwen3.5 with MoE and a shared expert in every layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

from bringup.graphs.config.fields import Fields
from bringup.graphs.config.moe import read_shared_experts
from bringup.graphs.config.text_config import of_text
from bringup.graphs.core.module import Module
from bringup.graphs.hybrid import Hybrid, HybridMoeConfig
from bringup.graphs.qwen2_moe import mlp_of
from bringup.graphs.qwen3_5 import IMAGES, read_text

KEYS = {"intermediate_size": "shared_expert_intermediate_size"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Qwen3_5MoeConfig(HybridMoeConfig):
    """No layer has an MLP without experts; `ffn` is the width of the shared expert."""

    family: ClassVar[str] = "qwen3_5_moe"
    model_types: ClassVar[tuple[str, ...]] = ("qwen3_5_moe", "qwen3_5_moe_text")

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        return of_text(fields, cls._of_text, IMAGES)

    @classmethod
    def _of_text(cls, fields: Fields) -> Self:
        layers, experts = fields.layers("num_hidden_layers"), fields.experts("num_experts", 256)
        fields.only("decoder_sparse_step", 1)  # transformers reads neither of these two
        fields.only("norm_topk_prob", True)
        return cls(
            **read_text(fields, layers, kv_heads=2, keys=KEYS, ffn=512),
            **read_shared_experts(fields, experts, ffn=512, shared=512, per_token=8),
            sparse=(True,) * layers,
            normalise=True,
        )


class Qwen3_5Moe(Hybrid):
    def mlp(self, config: Qwen3_5MoeConfig, index: int) -> Module:
        return mlp_of(config, sparse=True)
