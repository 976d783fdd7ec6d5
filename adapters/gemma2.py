"""Gemma 2 as published: the graph's own names and layouts."""

from __future__ import annotations

from bringup.adapters.algebra.expr import S
from bringup.adapters.planning.adapter import Adapter, tied
from bringup.adapters.planning.drops import drop_rope_tables
from bringup.graphs.gemma2 import Gemma2Config


def adapter(config: Gemma2Config) -> Adapter:
    gemma2 = Adapter("gemma2", defaults=("out in", "vocab m"), prefix="model.")
    gemma2["model.{n:embed_tokens|norm}.weight"] = S("{n}.weight")
    for norm in ("input", "post_attention", "pre_feedforward", "post_feedforward"):
        gemma2[f"model.layers.{{L}}.{norm}_layernorm.weight"] = S(f"layers.{{L}}.{norm}_layernorm.weight")
    gemma2["model.layers.{L}.self_attn.{x:q|k|v|o}_proj.{p:weight|bias}"] = S("layers.{L}.self_attn.{x}_proj.{p}")
    gemma2["model.layers.{L}.mlp.{x:gate|up|down}_proj.weight"] = S("layers.{L}.mlp.{x}_proj.weight")
    gemma2["lm_head.weight"] = tied(S("lm_head.weight"), S("embed_tokens.weight", "vocab m"), when=config.tied_head)
    drop_rope_tables(gemma2)
    return gemma2
