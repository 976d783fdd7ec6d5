"""Bamba as published: its own names of norms and MLPs, which Falcon-H1 has too."""

from __future__ import annotations

from bringup.adapters.algebra.expr import S
from bringup.adapters.mamba import add_mamba
from bringup.adapters.planning.adapter import Adapter, tied
from bringup.adapters.planning.drops import drop_rope_tables
from bringup.graphs.bamba import BambaConfig
from bringup.graphs.falcon_h1 import FalconH1Config

LAYER = "layers.{L}."


def adapter(config: BambaConfig | FalconH1Config) -> Adapter:
    bamba = Adapter(config.family, defaults=("out in", "vocab m"), prefix="model.")
    bamba["model.embed_tokens.weight"] = S("embed_tokens.weight")
    bamba["model.norm.weight"] = S("final_layernorm.weight")
    bamba[f"model.{LAYER}input_layernorm.weight"] = S(LAYER + "input_layernorm.weight")
    bamba[f"model.{LAYER}post_attention_layernorm.weight"] = S(LAYER + "pre_ff_layernorm.weight")
    bamba[f"model.{LAYER}self_attn.{{x:q|k|v|o}}_proj.{{p:weight|bias}}"] = S(LAYER + "self_attn.{x}_proj.{p}")
    bamba[f"model.{LAYER}mlp.{{x:gate|up|down}}_proj.{{p:weight|bias}}"] = S(LAYER + "feed_forward.{x}_proj.{p}")
    add_mamba(bamba, config.mamba, LAYER + "mamba.")
    bamba["lm_head.weight"] = tied(S("lm_head.weight"), S("embed_tokens.weight", "vocab m"), when=config.tied_head)
    drop_rope_tables(bamba)
    return bamba
