"""Qwen3-MoE as published: one tensor for each matrix of each expert."""

from __future__ import annotations

from bringup.adapters.algebra.expr import S, stack
from bringup.adapters.planning.adapter import Adapter, tied
from bringup.adapters.planning.drops import drop_rope_tables
from bringup.graphs.qwen3_moe import Qwen3MoeConfig


def adapter(config: Qwen3MoeConfig) -> Adapter:
    qwen3 = Adapter("qwen3_moe", defaults=("out in", "vocab m"), prefix="model.")
    qwen3["model.{n:embed_tokens|norm}.weight"] = S("{n}.weight")
    qwen3["model.layers.{L}.{n:input_layernorm|post_attention_layernorm}.weight"] = S("layers.{L}.{n}.weight")
    qwen3["model.layers.{L}.self_attn.{x:q|k|v|o}_proj.{p:weight|bias}"] = S("layers.{L}.self_attn.{x}_proj.{p}")
    qwen3["model.layers.{L}.self_attn.{x:q|k}_norm.weight"] = S("layers.{L}.self_attn.{x}_norm.weight")
    qwen3["model.layers.{L}.mlp.{x:gate|up|down}_proj.weight"] = S("layers.{L}.mlp.{x}_proj.weight")
    qwen3["model.layers.{L}.mlp.gate.weight"] = S("layers.{L}.mlp.gate.weight")
    for x, axes in (("gate", "f m"), ("up", "f m"), ("down", "m f")):
        expert = S(f"layers.{{L}}.mlp.experts.{{E}}.{x}_proj.weight", axes)
        qwen3[f"model.layers.{{L}}.mlp.experts.{x}_proj"] = stack(expert, over="E", n=config.num_experts)
    qwen3["lm_head.weight"] = tied(S("lm_head.weight"), S("embed_tokens.weight", "vocab m"), when=config.tied_head)
    drop_rope_tables(qwen3)
    return qwen3
