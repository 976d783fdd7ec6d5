"""Qwen3-MoE in GGUF: one tensor for each expert matrix of a layer. Names: gguf-py, `tensor_mapping.py`.

llama.cpp has experts in every layer, and divides the selected experts' weights by their sum
(`src/models/qwen3moe.cpp`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bringup.adapters.dialects.dialect import DECODER, Dialect
from bringup.adapters.dialects.tables import add_attention, add_experts, add_norms, attention_bias, without_layers
from bringup.adapters.planning.adapter import Adapter

if TYPE_CHECKING:
    from bringup.graphs.qwen3_moe import Qwen3MoeConfig


def table(config: Qwen3MoeConfig) -> Adapter:
    gguf = without_layers(config)
    add_norms(gguf)
    add_attention(gguf)
    add_experts(gguf)
    return gguf


dialect = Dialect(
    names=("qwen3moe",),
    architecture="Qwen3MoeForCausalLM",
    keys={
        **DECODER,
        "expert_count": "num_experts",
        "expert_used_count": "num_experts_per_tok",
        "expert_feed_forward_length": "moe_intermediate_size",
    },
    fixed={"model_type": "qwen3_moe", "hidden_act": "silu", "norm_topk_prob": True},
    derived=attention_bias,
    table=table,
)
