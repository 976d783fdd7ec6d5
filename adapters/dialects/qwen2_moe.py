"""Qwen1.5-MoE and Qwen2-MoE in GGUF. Names: gguf-py, `tensor_mapping.py`.

llama.cpp does not divide the selected experts' weights by their sum (`src/models/qwen2moe.cpp`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bringup.adapters.dialects.dialect import DECODER, Dialect
from bringup.adapters.dialects.shared_experts import EXPERTS, add_shared_experts
from bringup.adapters.dialects.tables import add_attention, add_norms, without_layers
from bringup.adapters.planning.adapter import Adapter

if TYPE_CHECKING:
    from bringup.adapters.checkpoints.gguf_config import Hyperparameters
    from bringup.graphs.qwen2_moe import Qwen2MoeConfig


def table(config: Qwen2MoeConfig) -> Adapter:
    gguf = without_layers(config)
    add_norms(gguf)
    add_attention(gguf)
    add_shared_experts(gguf)
    return gguf


def derived(hyper: Hyperparameters) -> dict[str, Any]:
    return {"qkv_bias": "blk.0.attn_q.bias" in hyper.tensors}


dialect = Dialect(
    names=("qwen2moe",),
    architecture="Qwen2MoeForCausalLM",
    keys={**DECODER, **EXPERTS},
    fixed={"model_type": "qwen2_moe", "hidden_act": "silu", "norm_topk_prob": False},
    derived=derived,
    table=table,
)
