"""Qwen1.5-MoE and Qwen2-MoE in GGUF. Names: gguf-py, `tensor_mapping.py`.

llama.cpp has experts in every layer, does not divide the selected experts' weights by their sum, and stores the gate of
the shared expert as a vector (`src/models/qwen2moe.cpp`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bringup.adapters.algebra.expr import S
from bringup.adapters.dialects.dialect import DECODER, Dialect
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
    gguf["model.layers.{L}.mlp.gate.weight"] = S("blk.{L}.ffn_gate_inp.weight")
    gate = S("blk.{L}.ffn_gate_inp_shexp.weight", "(s m)")
    gguf["model.layers.{L}.mlp.shared_expert_gate.weight"] = gate.mv("(s m) -> s m", s=1)
    gguf["model.layers.{L}.mlp.shared_expert.{x:gate|up|down}_proj.weight"] = S("blk.{L}.ffn_{x}_shexp.weight")
    for x, axes in (("gate", "e f m"), ("up", "e f m"), ("down", "e m f")):
        gguf[f"model.layers.{{L}}.mlp.experts.{x}_proj"] = S(f"blk.{{L}}.ffn_{x}_exps.weight", axes)
    return gguf


def derived(hyper: Hyperparameters) -> dict[str, Any]:
    return {"qkv_bias": "blk.0.attn_q.bias" in hyper.tensors}


dialect = Dialect(
    names=("qwen2moe",),
    architecture="Qwen2MoeForCausalLM",
    keys={
        **DECODER,
        "expert_count": "num_experts",
        "expert_used_count": "num_experts_per_tok",
        "expert_feed_forward_length": "moe_intermediate_size",
        "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
    },
    fixed={"model_type": "qwen2_moe", "hidden_act": "silu", "norm_topk_prob": False},
    derived=derived,
    table=table,
)
