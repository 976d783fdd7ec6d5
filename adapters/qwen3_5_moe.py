"""Qwen3.5-MoE as published: Qwen3.5 with all experts of a layer in one tensor, or one tensor for each matrix."""

from __future__ import annotations

from bringup.adapters.planning.adapter import Adapter
from bringup.adapters.qwen3_5 import text_model
from bringup.adapters.shared_experts import add_shared_experts
from bringup.graphs.qwen3_5_moe import Qwen3_5MoeConfig


def adapter(config: Qwen3_5MoeConfig) -> Adapter:
    table = text_model("qwen3_5_moe", config)
    add_shared_experts(table, config.num_experts, fused=True)
    return table
