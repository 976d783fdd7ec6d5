"""MiniMax-M2 as published: one tensor for each matrix of each expert, w1 the gate, w3 up, w2 down."""

from __future__ import annotations

from bringup.adapters.algebra.expr import S, stack
from bringup.adapters.planning.adapter import Adapter, tied
from bringup.adapters.planning.drops import drop_rope_tables
from bringup.graphs.minimax_m2 import MiniMaxM2Config


def adapter(config: MiniMaxM2Config) -> Adapter:
    minimax = Adapter("minimax_m2", defaults=("out in", "vocab m"), prefix="model.")
    minimax["model.{n:embed_tokens|norm}.weight"] = S("{n}.weight")
    minimax["model.layers.{L}.{n:input_layernorm|post_attention_layernorm}.weight"] = S("layers.{L}.{n}.weight")
    minimax["model.layers.{L}.self_attn.{x:q|k|v|o}_proj.weight"] = S("layers.{L}.self_attn.{x}_proj.weight")
    minimax["model.layers.{L}.self_attn.{x:q|k}_norm.weight"] = S("layers.{L}.self_attn.{x}_norm.weight")
    moe = "layers.{L}.block_sparse_moe."
    minimax["model.layers.{L}.mlp.gate.weight"] = S(moe + "gate.weight")
    minimax["model.layers.{L}.mlp.gate.e_score_correction_bias"] = S(moe + "e_score_correction_bias")
    for name, published, axes in (("gate", "w1", "f m"), ("up", "w3", "f m"), ("down", "w2", "m f")):
        expert = S(f"{moe}experts.{{E}}.{published}.weight", axes)
        minimax[f"model.layers.{{L}}.mlp.experts.{name}_proj"] = stack(expert, over="E", n=config.routing.experts)
    minimax["lm_head.weight"] = tied(S("lm_head.weight"), S("embed_tokens.weight", "vocab m"), when=config.tied_head)
    drop_rope_tables(minimax)
    return minimax
