"""The keys and tensors of Qwen's MoE layers with a shared expert in GGUF.

llama.cpp has experts in every layer (`src/models/qwen2moe.cpp`).
"""

from __future__ import annotations

from collections.abc import Mapping

from bringup.adapters.algebra.expr import S
from bringup.adapters.dialects.tables import add_experts
from bringup.adapters.planning.adapter import Adapter

EXPERTS: Mapping[str, str] = {
    "expert_count": "num_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
}


def add_shared_experts(gguf: Adapter) -> None:
    """Adds the rules of the router, of the shared expert, and of the routed ones."""
    add_experts(gguf)
    gguf["model.layers.{L}.mlp.shared_expert_gate.weight"] = S("blk.{L}.ffn_gate_inp_shexp.weight")
    gguf["model.layers.{L}.mlp.shared_expert.{x:gate|up|down}_proj.weight"] = S("blk.{L}.ffn_{x}_shexp.weight")
