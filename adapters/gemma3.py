"""Gemma 3's text models as published: the graph's own names and layouts."""

from __future__ import annotations

from bringup.adapters.algebra.expr import S
from bringup.adapters.planning.adapter import Adapter, tied
from bringup.adapters.planning.drops import drop_rope_tables
from bringup.graphs.gemma3 import Gemma3Config


def adapter(config: Gemma3Config) -> Adapter:
    gemma3 = Adapter("gemma3", defaults=("out in", "vocab m"), prefix="model.")
    gemma3["model.{n:embed_tokens|norm}.weight"] = S("{n}.weight")
    for norm in ("input", "post_attention", "pre_feedforward", "post_feedforward"):
        gemma3[f"model.layers.{{L}}.{norm}_layernorm.weight"] = S(f"layers.{{L}}.{norm}_layernorm.weight")
    gemma3["model.layers.{L}.self_attn.{x:q|k|v|o}_proj.{p:weight|bias}"] = S("layers.{L}.self_attn.{x}_proj.{p}")
    gemma3["model.layers.{L}.self_attn.{x:q|k}_norm.weight"] = S("layers.{L}.self_attn.{x}_norm.weight")
    gemma3["model.layers.{L}.mlp.{x:gate|up|down}_proj.weight"] = S("layers.{L}.mlp.{x}_proj.weight")
    gemma3["lm_head.weight"] = tied(S("lm_head.weight"), S("embed_tokens.weight", "vocab m"), when=config.tied_head)
    drop_rope_tables(gemma3, "layers.{L}.self_attn.rotary_emb", "rotary_emb", "rotary_emb_local")
    return gemma3
