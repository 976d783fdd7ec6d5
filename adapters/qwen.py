"""Qwen 1 as published: q, k and v concatenated in one tensor; w2 is the gate, w1 up."""

from __future__ import annotations

from bringup.adapters.algebra.expr import S
from bringup.adapters.planning.adapter import Adapter, tied
from bringup.adapters.planning.drops import drop_rope_tables
from bringup.graphs.qwen import QWenConfig


def adapter(config: QWenConfig) -> Adapter:
    qwen = Adapter("qwen", defaults=("out in", "vocab m"), prefix="transformer.")
    qwen["model.embed_tokens.weight"] = S("wte.weight")
    qwen["model.norm.weight"] = S("ln_f.weight")
    qwen["model.layers.{L}.input_layernorm.weight"] = S("h.{L}.ln_1.weight")
    qwen["model.layers.{L}.post_attention_layernorm.weight"] = S("h.{L}.ln_2.weight")
    for index, (x, h) in enumerate({"q": "h", "k": "g", "v": "g"}.items()):
        weight = S("h.{L}.attn.c_attn.weight", f"(t {h} d) m", t=3).mv(f"(t {h} d) m -> t ({h} d) m", t=3)
        bias = S("h.{L}.attn.c_attn.bias", f"(t {h} d)", t=3).mv(f"(t {h} d) -> t ({h} d)", t=3)
        qwen[f"model.layers.{{L}}.self_attn.{x}_proj.weight"] = weight.at("t", index)
        qwen[f"model.layers.{{L}}.self_attn.{x}_proj.bias"] = bias.at("t", index)
    qwen["model.layers.{L}.self_attn.o_proj.{p:weight|bias}"] = S("h.{L}.attn.c_proj.{p}")
    for name, published in (("gate_proj", "w2"), ("up_proj", "w1"), ("down_proj", "c_proj")):
        qwen[f"model.layers.{{L}}.mlp.{name}.{{p:weight|bias}}"] = S(f"h.{{L}}.mlp.{published}.{{p}}")
    qwen["lm_head.weight"] = tied(S("lm_head.weight"), S("wte.weight", "vocab m"), when=config.tied_head)
    qwen.drop("h.{L}.attn.masked_bias", why="a constant of the causal mask")
    drop_rope_tables(qwen, "h.{L}.attn.rotary_emb", "rotary_emb")
    return qwen
