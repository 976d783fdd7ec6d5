"""GPT-NeoX and Pythia as published: q, k and v of each head adjacent in one matrix."""

from __future__ import annotations

from bringup.adapters.algebra.expr import S
from bringup.adapters.planning.adapter import Adapter, tied
from bringup.adapters.planning.drops import drop_rope_tables
from bringup.graphs.gpt_neox import GPTNeoXConfig


def adapter(config: GPTNeoXConfig) -> Adapter:
    neox = Adapter("gpt_neox", defaults=("out in", "vocab m"), prefix="gpt_neox.")
    neox["gpt_neox.embed_in.weight"] = S("embed_in.weight")
    neox["gpt_neox.final_layer_norm.{p:weight|bias}"] = S("final_layer_norm.{p}")
    layer, attention = "layers.{L}.", "layers.{L}.attention."
    norm, mlp = "{n:input_layernorm|post_attention_layernorm}", "mlp.{n:dense_h_to_4h|dense_4h_to_h}"
    neox[f"gpt_neox.{layer}{norm}.{{p:weight|bias}}"] = S(layer + "{n}.{p}")
    neox[f"gpt_neox.{layer}{mlp}.{{p:weight|bias}}"] = S(layer + "mlp.{n}.{p}")
    neox[f"gpt_neox.{attention}o_proj.{{p:weight|bias}}"] = S(attention + "dense.{p}")
    fused = attention + "query_key_value."
    for i, (x, h) in enumerate(zip("qkv", "hgg", strict=True)):
        weight = S(fused + "weight", f"({h} t d) m", t=3).mv(f"({h} t d) m -> t ({h} d) m", t=3)
        bias = S(fused + "bias", f"({h} t d)", t=3).mv(f"({h} t d) -> t ({h} d)", t=3)
        neox[f"gpt_neox.{attention}{x}_proj.weight"] = weight.at("t", i)
        neox[f"gpt_neox.{attention}{x}_proj.bias"] = bias.at("t", i)
    head, embedding = S("embed_out.weight"), S("embed_in.weight", "vocab m")
    neox["embed_out.weight"] = tied(head, embedding, when=config.tied_head)
    neox.drop(attention + "{b:bias|masked_bias}", why="causal-mask buffers")
    drop_rope_tables(neox, attention + "rotary_emb", "rotary_emb")
    return neox
