"""BLOOM as published: q, k and v of each head adjacent in one matrix, the head tied."""

from __future__ import annotations

from bringup.adapters.algebra.expr import S
from bringup.adapters.planning.adapter import Adapter, tied
from bringup.graphs.bloom import BloomConfig


def adapter(config: BloomConfig) -> Adapter:
    """Files of bigscience/bloom lack the top-level `transformer.`; those saved by transformers have it."""
    bloom = Adapter("bloom", defaults=("out in", "vocab m"), prefix="transformer.")
    bloom["transformer.{n:word_embeddings|word_embeddings_layernorm|ln_f}.{p:weight|bias}"] = S("{n}.{p}")
    layer, attention = "h.{L}.", "h.{L}.self_attention."
    norm, mlp = "{n:input_layernorm|post_attention_layernorm}", "mlp.{n:dense_h_to_4h|dense_4h_to_h}"
    bloom[f"transformer.{layer}{norm}.{{p:weight|bias}}"] = S(layer + "{n}.{p}")
    bloom[f"transformer.{layer}{mlp}.{{p:weight|bias}}"] = S(layer + "mlp.{n}.{p}")
    bloom[f"transformer.{attention}dense.{{p:weight|bias}}"] = S(attention + "dense.{p}")
    if not config.out_bias:
        for name in (attention + "dense.bias", layer + "mlp.dense_4h_to_h.bias"):
            bloom.drop(name, why="`slow_but_exact` with `pretraining_tp` above 1: transformers adds no bias here")
    fused = attention + "query_key_value."
    weights = S(fused + "weight", "(h t d) m", t=3).mv("(h t d) m -> t (h d) m", t=3)
    biases = S(fused + "bias", "(h t d)", t=3).mv("(h t d) -> t (h d)", t=3)
    for i, x in enumerate("qkv"):
        bloom[f"transformer.{attention}{x}_proj.weight"] = weights.at("t", i)
        bloom[f"transformer.{attention}{x}_proj.bias"] = biases.at("t", i)
    head, embedding = S("lm_head.weight"), S("word_embeddings.weight", "vocab m")
    bloom["lm_head.weight"] = tied(head, embedding, when=config.tied_head)
    return bloom
