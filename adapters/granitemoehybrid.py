"""Granite 4 as published: gate and up in one tensor, and the matrices of all experts in one.

llm-compressor saves quantised experts as modules of their own, without that of all experts.
"""

from __future__ import annotations

from bringup.adapters.algebra.expr import S, stack
from bringup.adapters.mamba import add_mamba
from bringup.adapters.planning.adapter import Adapter, either, tied
from bringup.adapters.planning.drops import drop_rope_tables
from bringup.graphs.granitemoehybrid import GraniteMoeHybridConfig

LAYER, MOE = "layers.{L}.", "layers.{L}.block_sparse_moe."


def adapter(config: GraniteMoeHybridConfig) -> Adapter:
    granite = Adapter("granitemoehybrid", defaults=("out in", "vocab m"), prefix="model.")
    granite["model.{n:embed_tokens|norm}.weight"] = S("{n}.weight")
    granite[f"model.{LAYER}{{n:input_layernorm|post_attention_layernorm}}.weight"] = S(LAYER + "{n}.weight")
    granite[f"model.{LAYER}self_attn.{{x:q|k|v|o}}_proj.{{p:weight|bias}}"] = S(LAYER + "self_attn.{x}_proj.{p}")
    add_mamba(granite, config.mamba, LAYER + "mamba.")
    granite[f"model.{LAYER}mlp.gate.weight"] = S(MOE + "router.layer.weight")
    experts = S(MOE + "input_linear.weight", "e (t f) m", t=2).mv("e (t f) m -> t e f m", t=2)
    shared = S(LAYER + "shared_mlp.input_linear.weight", "(t f) m", t=2).mv("(t f) m -> t f m", t=2)
    of_shared = f"model.{LAYER}mlp.shared_mlp." if config.num_experts else f"model.{LAYER}mlp."
    for index, x in enumerate(("gate", "up")):
        granite[f"{of_shared}{x}_proj.weight"] = shared.at("t", index)
    whole = (experts.at("t", 0), experts.at("t", 1), S(MOE + "output_linear.weight", "e m f"))
    for index, (x, axes) in enumerate((("gate", "f m"), ("up", "f m"), ("down", "m f"))):
        each = stack(S(f"{MOE}experts.{{E}}.{x}_proj.weight", axes), over="E", n=config.num_experts)
        granite[f"model.{LAYER}mlp.experts.{x}_proj"] = either(whole[index], each)
    granite[f"{of_shared}down_proj.weight"] = S(LAYER + "shared_mlp.output_linear.weight")
    granite["lm_head.weight"] = tied(S("lm_head.weight"), S("embed_tokens.weight", "vocab m"), when=config.tied_head)
    drop_rope_tables(granite)
    return granite
