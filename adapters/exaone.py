"""EXAONE 3 as published: Llama's layouts under GPT-2's names; c_fc_0 is the gate, c_fc_1 up."""

from __future__ import annotations

from bringup.adapters.algebra.expr import S
from bringup.adapters.planning.adapter import Adapter, tied
from bringup.adapters.planning.drops import drop_rope_tables
from bringup.graphs.exaone import ExaoneConfig


def adapter(config: ExaoneConfig) -> Adapter:
    exaone = Adapter("exaone", defaults=("out in", "vocab m"), prefix="transformer.")
    exaone["model.embed_tokens.weight"] = S("wte.weight")
    exaone["model.norm.weight"] = S("ln_f.weight")
    exaone["model.layers.{L}.input_layernorm.weight"] = S("h.{L}.ln_1.weight")
    exaone["model.layers.{L}.post_attention_layernorm.weight"] = S("h.{L}.ln_2.weight")
    exaone["model.layers.{L}.self_attn.{x:q|k|v}_proj.weight"] = S("h.{L}.attn.attention.{x}_proj.weight")
    exaone["model.layers.{L}.self_attn.o_proj.weight"] = S("h.{L}.attn.attention.out_proj.weight")
    for name, published in (("gate_proj", "c_fc_0"), ("up_proj", "c_fc_1"), ("down_proj", "c_proj")):
        exaone[f"model.layers.{{L}}.mlp.{name}.weight"] = S(f"h.{{L}}.mlp.{published}.weight")
    exaone["lm_head.weight"] = tied(S("lm_head.weight"), S("wte.weight", "vocab m"), when=config.tied_head)
    drop_rope_tables(exaone, "h.{L}.attn.attention.rotary", "rotary")
    return exaone
