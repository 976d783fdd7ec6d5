"""Qwen3-MoE in GGUF: one tensor for each expert matrix of a layer. Names: gguf-py, `tensor_mapping.py`.

llama.cpp has experts in every layer, and divides the selected experts' weights by their sum
(`src/models/qwen3moe.cpp`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bringup.adapters.algebra.expr import S
from bringup.adapters.dialects.dialect import DECODER, Dialect
from bringup.adapters.planning.adapter import Adapter, tied

if TYPE_CHECKING:
    from bringup.adapters.checkpoints.gguf_config import Hyperparameters
    from bringup.graphs.qwen3_moe import Qwen3MoeConfig


def table(config: Qwen3MoeConfig) -> Adapter:
    gguf = Adapter("qwen3_moe in GGUF", defaults=("out in", "vocab m"))
    gguf["model.embed_tokens.weight"] = S("token_embd.weight")
    gguf["model.norm.weight"] = S("output_norm.weight")
    gguf["lm_head.weight"] = tied(S("output.weight"), S("token_embd.weight", "vocab m"), when=config.tied_head)
    gguf["model.layers.{L}.input_layernorm.weight"] = S("blk.{L}.attn_norm.weight")
    gguf["model.layers.{L}.post_attention_layernorm.weight"] = S("blk.{L}.ffn_norm.weight")
    gguf["model.layers.{L}.self_attn.{x:q|k|v}_proj.{p:weight|bias}"] = S("blk.{L}.attn_{x}.{p}")
    gguf["model.layers.{L}.self_attn.o_proj.{p:weight|bias}"] = S("blk.{L}.attn_output.{p}")
    gguf["model.layers.{L}.self_attn.{x:q|k}_norm.weight"] = S("blk.{L}.attn_{x}_norm.weight")
    gguf["model.layers.{L}.mlp.gate.weight"] = S("blk.{L}.ffn_gate_inp.weight")
    for x, axes in (("gate", "e f m"), ("up", "e f m"), ("down", "e m f")):
        gguf[f"model.layers.{{L}}.mlp.experts.{x}_proj"] = S(f"blk.{{L}}.ffn_{x}_exps.weight", axes)
    return gguf


def derived(hyper: Hyperparameters) -> dict[str, Any]:
    return {"attention_bias": "blk.0.attn_q.bias" in hyper.tensors}


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
    derived=derived,
    table=table,
)
