"""Qwen3 as published: the graph's own names and layouts."""

from __future__ import annotations

from bringup.adapters.algebra.expr import S
from bringup.adapters.planning.adapter import Adapter, tied
from bringup.adapters.planning.drops import drop_rope_tables
from bringup.graphs.qwen3 import Qwen3Config


def adapter(config: Qwen3Config) -> Adapter:
    qwen3 = Adapter("qwen3", defaults=("out in", "vocab m"), prefix="model.")
    qwen3["model.{n:embed_tokens|norm}.weight"] = S("{n}.weight")
    qwen3["model.layers.{L}.{n:input_layernorm|post_attention_layernorm}.weight"] = S("layers.{L}.{n}.weight")
    qwen3["model.layers.{L}.self_attn.{x:q|k|v|o}_proj.{p:weight|bias}"] = S("layers.{L}.self_attn.{x}_proj.{p}")
    qwen3["model.layers.{L}.self_attn.{x:q|k}_norm.weight"] = S("layers.{L}.self_attn.{x}_norm.weight")
    qwen3["model.layers.{L}.mlp.{x:gate|up|down}_proj.weight"] = S("layers.{L}.mlp.{x}_proj.weight")
    qwen3["lm_head.weight"] = tied(S("lm_head.weight"), S("embed_tokens.weight", "vocab m"), when=config.tied_head)
    drop_rope_tables(qwen3)
    return qwen3
