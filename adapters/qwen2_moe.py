"""Qwen1.5-MoE and Qwen2-MoE as published: one tensor for each matrix of each expert, and those of the shared expert."""

from __future__ import annotations

from bringup.adapters.algebra.expr import S
from bringup.adapters.planning.adapter import Adapter, tied
from bringup.adapters.planning.drops import drop_rope_tables
from bringup.adapters.shared_experts import add_shared_experts
from bringup.graphs.qwen2_moe import Qwen2MoeConfig


def adapter(config: Qwen2MoeConfig) -> Adapter:
    qwen2 = Adapter("qwen2_moe", defaults=("out in", "vocab m"), prefix="model.")
    qwen2["model.{n:embed_tokens|norm}.weight"] = S("{n}.weight")
    qwen2["model.layers.{L}.{n:input_layernorm|post_attention_layernorm}.weight"] = S("layers.{L}.{n}.weight")
    qwen2["model.layers.{L}.self_attn.{x:q|k|v|o}_proj.{p:weight|bias}"] = S("layers.{L}.self_attn.{x}_proj.{p}")
    qwen2["model.layers.{L}.mlp.{x:gate|up|down}_proj.weight"] = S("layers.{L}.mlp.{x}_proj.weight")
    add_shared_experts(qwen2, config.num_experts)
    qwen2["lm_head.weight"] = tied(S("lm_head.weight"), S("embed_tokens.weight", "vocab m"), when=config.tied_head)
    drop_rope_tables(qwen2)
    return qwen2
