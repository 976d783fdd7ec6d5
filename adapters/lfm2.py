"""LFM2 as published: the three projections of a convolution in one tensor, and names of its own."""

from __future__ import annotations

from bringup.adapters.algebra.expr import S
from bringup.adapters.planning.adapter import Adapter, tied
from bringup.adapters.planning.drops import drop_rope_tables
from bringup.graphs.lfm2 import Lfm2Config

MLP = {"gate": "w1", "up": "w3", "down": "w2"}
NORMS = {"input_layernorm": "operator_norm", "post_attention_layernorm": "ffn_norm"}


def adapter(config: Lfm2Config) -> Adapter:
    return published("lfm2", config)


def published(family: str, config: Lfm2Config) -> Adapter:
    """The table of the parameters that LFM2 and LFM2-MoE share."""
    lfm2 = Adapter(family, defaults=("out in", "vocab m"), prefix="model.")
    lfm2["model.embed_tokens.weight"] = S("embed_tokens.weight")
    lfm2["model.norm.weight"] = S("embedding_norm.weight")
    for ours, theirs in NORMS.items():
        lfm2[f"model.layers.{{L}}.{ours}.weight"] = S(f"layers.{{L}}.{theirs}.weight")
    lfm2["model.layers.{L}.self_attn.{x:q|k|v}_proj.weight"] = S("layers.{L}.self_attn.{x}_proj.weight")
    lfm2["model.layers.{L}.self_attn.o_proj.weight"] = S("layers.{L}.self_attn.out_proj.weight")
    lfm2["model.layers.{L}.self_attn.{x:q|k}_norm.weight"] = S("layers.{L}.self_attn.{x}_layernorm.weight")
    for ours, theirs in MLP.items():
        lfm2[f"model.layers.{{L}}.mlp.{ours}_proj.weight"] = S(f"layers.{{L}}.feed_forward.{theirs}.weight")
    inputs = S("layers.{L}.conv.in_proj.weight", "(t f) m", t=3).mv("(t f) m -> t f m")
    biases = S("layers.{L}.conv.in_proj.bias", "(t f)", t=3).mv("(t f) -> t f")
    for index, x in enumerate("bcx"):
        lfm2[f"model.layers.{{L}}.mixer.{x}_proj.weight"] = inputs.at("t", index)
        lfm2[f"model.layers.{{L}}.mixer.{x}_proj.bias"] = biases.at("t", index)
    lfm2["model.layers.{L}.mixer.out_proj.{p:weight|bias}"] = S("layers.{L}.conv.out_proj.{p}")
    lfm2["model.layers.{L}.mixer.conv.weight"] = S("layers.{L}.conv.conv.weight", "f one tap", one=1).at("one", 0)
    lfm2["model.layers.{L}.mixer.conv.bias"] = S("layers.{L}.conv.conv.bias")
    lfm2["lm_head.weight"] = tied(S("lm_head.weight"), S("embed_tokens.weight", "vocab m"), when=config.tied_head)
    drop_rope_tables(lfm2)
    return lfm2
