"""Llama 4 in GGUF: one tensor for each expert matrix of a layer, gate and up apart.

Names: gguf-py, `tensor_mapping.py`; hyperparameters: `Llama4Model` of llama.cpp's `conversion/llama.py`, which does not
permute rows of q and k. Files do not state chunks, layers without rope and the growth of queries: llama.cpp has those
of Scout and Maverick, and norms of queries and keys unless there are 128 experts (`src/models/llama4.cpp`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bringup.adapters.algebra.expr import S
from bringup.adapters.dialects.dialect import DECODER, Dialect
from bringup.adapters.dialects.tables import (
    LAYER,
    add_attention,
    add_experts,
    add_mlp,
    add_norms,
    attention_bias,
    without_layers,
)
from bringup.adapters.planning.adapter import Adapter

if TYPE_CHECKING:
    from bringup.adapters.checkpoints.gguf_config import Hyperparameters
    from bringup.graphs.llama4 import Llama4Config

MAVERICK = 128  # experts
KEYS: dict[str, str | None] = {
    **DECODER,
    "feed_forward_length": "intermediate_size_mlp",
    "expert_count": "num_local_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "intermediate_size",
    "interleave_moe_layer_step": "interleave_moe_layer_step",
}


def table(config: Llama4Config) -> Adapter:
    gguf = without_layers(config)
    add_norms(gguf)
    add_attention(gguf)
    add_mlp(gguf)
    add_experts(gguf)
    gguf[LAYER + "mlp.shared_expert.{x:gate|up|down}_proj.weight"] = S("blk.{L}.ffn_{x}_shexp.weight")
    gguf.drop("rope_freqs.weight", why="factors of llama3 rope: checked when the config is read from the metadata")
    return gguf


def derived(hyper: Hyperparameters) -> dict[str, Any]:
    return {**attention_bias(hyper), "use_qk_norm": hyper.values.get("expert_count") != MAVERICK}


dialect = Dialect(
    names=("llama4",),
    architecture="Llama4ForCausalLM",
    keys=KEYS,
    fixed={
        "model_type": "llama4_text",
        "hidden_act": "silu",
        "attention_chunk_size": 8192,
        "no_rope_layer_interval": 4,
        "attn_temperature_tuning": True,
        "attn_scale": 0.1,
        "floor_scale": 8192,
    },
    derived=derived,
    table=table,
)
