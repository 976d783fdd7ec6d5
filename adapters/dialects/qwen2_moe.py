"""Qwen1.5-MoE and Qwen2-MoE in GGUF. Names: gguf-py, `tensor_mapping.py`.

llama.cpp does not divide the selected experts' weights by their sum (`src/models/qwen2moe.cpp`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bringup.adapters.algebra.expr import S
from bringup.adapters.dialects.dialect import DECODER, Dialect
from bringup.adapters.dialects.shared_experts import EXPERTS, add_shared_experts
from bringup.adapters.planning.adapter import Adapter, tied

if TYPE_CHECKING:
    from bringup.adapters.checkpoints.gguf_config import Hyperparameters
    from bringup.graphs.qwen2_moe import Qwen2MoeConfig


def table(config: Qwen2MoeConfig) -> Adapter:
    gguf = Adapter("qwen2_moe in GGUF", defaults=("out in", "vocab m"))
    gguf["model.embed_tokens.weight"] = S("token_embd.weight")
    gguf["model.norm.weight"] = S("output_norm.weight")
    gguf["lm_head.weight"] = tied(S("output.weight"), S("token_embd.weight", "vocab m"), when=config.tied_head)
    gguf["model.layers.{L}.input_layernorm.weight"] = S("blk.{L}.attn_norm.weight")
    gguf["model.layers.{L}.post_attention_layernorm.weight"] = S("blk.{L}.ffn_norm.weight")
    gguf["model.layers.{L}.self_attn.{x:q|k|v}_proj.{p:weight|bias}"] = S("blk.{L}.attn_{x}.{p}")
    gguf["model.layers.{L}.self_attn.o_proj.weight"] = S("blk.{L}.attn_output.weight")
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
