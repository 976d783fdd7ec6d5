"""Mixtral as published: one tensor for each matrix of each expert, w1 the gate, w3 up, w2 down."""

from __future__ import annotations

from bringup.adapters.algebra.expr import S, stack
from bringup.adapters.planning.adapter import Adapter, tied
from bringup.adapters.planning.drops import drop_rope_tables
from bringup.graphs.mixtral import MixtralConfig


def adapter(config: MixtralConfig) -> Adapter:
    mixtral = Adapter("mixtral", defaults=("out in", "vocab m"), prefix="model.")
    mixtral["model.{n:embed_tokens|norm}.weight"] = S("{n}.weight")
    mixtral["model.layers.{L}.{n:input_layernorm|post_attention_layernorm}.weight"] = S("layers.{L}.{n}.weight")
    mixtral["model.layers.{L}.self_attn.{x:q|k|v|o}_proj.weight"] = S("layers.{L}.self_attn.{x}_proj.weight")
    moe = "layers.{L}.block_sparse_moe."
    mixtral["model.layers.{L}.mlp.gate.weight"] = S(moe + "gate.weight")
    for name, published, axes in (("gate", "w1", "f m"), ("up", "w3", "f m"), ("down", "w2", "m f")):
        expert = S(f"{moe}experts.{{E}}.{published}.weight", axes)
        mixtral[f"model.layers.{{L}}.mlp.experts.{name}_proj"] = stack(expert, over="E", n=config.num_experts)
    mixtral["lm_head.weight"] = tied(S("lm_head.weight"), S("embed_tokens.weight", "vocab m"), when=config.tied_head)
    drop_rope_tables(mixtral)
    return mixtral
