"""OLMo 2 as published: the graph's own names and layouts."""

from __future__ import annotations

from bringup.adapters.algebra.expr import S
from bringup.adapters.planning.adapter import Adapter, tied
from bringup.adapters.planning.drops import drop_rope_tables
from bringup.graphs.olmo2 import Olmo2Config


def adapter(config: Olmo2Config) -> Adapter:
    olmo2 = Adapter("olmo2", defaults=("out in", "vocab m"), prefix="model.")
    olmo2["model.{n:embed_tokens|norm}.weight"] = S("{n}.weight")
    olmo2["model.layers.{L}.post_{n:attention|feedforward}_layernorm.weight"] = S(
        "layers.{L}.post_{n}_layernorm.weight"
    )
    olmo2["model.layers.{L}.self_attn.{x:q|k|v|o}_proj.{p:weight|bias}"] = S("layers.{L}.self_attn.{x}_proj.{p}")
    olmo2["model.layers.{L}.self_attn.{x:q|k}_norm.weight"] = S("layers.{L}.self_attn.{x}_norm.weight")
    olmo2["model.layers.{L}.mlp.{x:gate|up|down}_proj.weight"] = S("layers.{L}.mlp.{x}_proj.weight")
    olmo2["lm_head.weight"] = tied(S("lm_head.weight"), S("embed_tokens.weight", "vocab m"), when=config.tied_head)
    drop_rope_tables(olmo2)
    return olmo2
