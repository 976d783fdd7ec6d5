"""Phi-3 as published: q, k and v stacked in one matrix, gate and up in another."""

from __future__ import annotations

from bringup.adapters.algebra.expr import S
from bringup.adapters.planning.adapter import Adapter, tied
from bringup.adapters.planning.drops import drop_rope_tables
from bringup.graphs.phi3 import Phi3Config


def adapter(config: Phi3Config) -> Adapter:
    h, g, d, f = config.num_heads, config.num_kv_heads, config.head_dim, config.ffn
    phi3 = Adapter("phi3", defaults=("out in", "vocab m"), prefix="model.")
    phi3["model.{n:embed_tokens|norm}.weight"] = S("{n}.weight")
    phi3["model.layers.{L}.{n:input_layernorm|post_attention_layernorm}.weight"] = S("layers.{L}.{n}.weight")
    phi3["model.layers.{L}.self_attn.o_proj.weight"] = S("layers.{L}.self_attn.o_proj.weight")
    phi3["model.layers.{L}.mlp.down_proj.weight"] = S("layers.{L}.mlp.down_proj.weight")
    qkv = S("layers.{L}.self_attn.qkv_proj.weight", "out:(h d | g d | g d) m", h=h, g=g, d=d)
    for x, part in zip("qkv", qkv.split("out", h * d, g * d, g * d), strict=True):
        phi3[f"model.layers.{{L}}.self_attn.{x}_proj.weight"] = part
    gate_up = S("layers.{L}.mlp.gate_up_proj.weight", "out:(f | f) m")
    for x, part in zip(("gate", "up"), gate_up.split("out", f, f), strict=True):
        phi3[f"model.layers.{{L}}.mlp.{x}_proj.weight"] = part
    phi3["lm_head.weight"] = tied(S("lm_head.weight"), S("embed_tokens.weight", "vocab m"), when=config.tied_head)
    drop_rope_tables(phi3)
    return phi3
