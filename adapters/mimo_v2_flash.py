"""MiMo-V2-Flash as published: one tensor for each matrix of each expert, and layers that predict further tokens."""

from __future__ import annotations

from bringup.adapters.algebra.expr import S, stack
from bringup.adapters.planning.adapter import Adapter, tied
from bringup.adapters.planning.drops import drop_rope_tables
from bringup.graphs.mimo_v2_flash import MiMoV2FlashConfig


def adapter(config: MiMoV2FlashConfig) -> Adapter:
    mimo = Adapter("mimo_v2_flash", defaults=("out in", "vocab m"), prefix="model.")
    mimo["model.{n:embed_tokens|norm}.weight"] = S("{n}.weight")
    mimo["model.layers.{L}.{n:input_layernorm|post_attention_layernorm}.weight"] = S("layers.{L}.{n}.weight")
    mimo["model.layers.{L}.self_attn.{x:q|k|v|o}_proj.{p:weight|bias}"] = S("layers.{L}.self_attn.{x}_proj.{p}")
    mimo["model.layers.{L}.self_attn.sinks"] = S("layers.{L}.self_attn.attention_sink_bias")
    mimo["model.layers.{L}.mlp.{x:gate|up|down}_proj.weight"] = S("layers.{L}.mlp.{x}_proj.weight")
    mimo["model.layers.{L}.mlp.gate.{p:weight|e_score_correction_bias}"] = S("layers.{L}.mlp.gate.{p}")
    for x, axes in (("gate", "f m"), ("up", "f m"), ("down", "m f")):
        expert = S(f"layers.{{L}}.mlp.experts.{{E}}.{x}_proj.weight", axes)
        mimo[f"model.layers.{{L}}.mlp.experts.{x}_proj"] = stack(expert, over="E", n=config.routing.experts)
    mimo["lm_head.weight"] = tied(S("lm_head.weight"), S("embed_tokens.weight", "vocab m"), when=config.tied_head)
    drop_rope_tables(mimo)
    mimo.drop("mtp.layers.{D}.{rest:**}", why="layers that predict further tokens")
    return mimo
