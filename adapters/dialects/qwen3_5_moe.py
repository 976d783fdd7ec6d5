"""Qwen3.5-MoE in GGUF: Qwen3.5 with the experts of Qwen's other MoE models."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bringup.adapters.dialects.dialect import Dialect
from bringup.adapters.dialects.qwen3_5 import KEYS, derived, text_model
from bringup.adapters.dialects.shared_experts import EXPERTS, add_shared_experts
from bringup.adapters.planning.adapter import Adapter

if TYPE_CHECKING:
    from bringup.graphs.qwen3_5_moe import Qwen3_5MoeConfig


def table(config: Qwen3_5MoeConfig) -> Adapter:
    gguf = text_model(config)
    add_shared_experts(gguf)
    return gguf


dialect = Dialect(
    names=("qwen35moe",),
    architecture="Qwen3_5MoeForCausalLM",
    keys={**KEYS, **EXPERTS, "feed_forward_length": None},  # no layer has an MLP without experts
    fixed={"model_type": "qwen3_5_moe_text", "hidden_act": "silu"},
    derived=derived,
    table=table,
)
