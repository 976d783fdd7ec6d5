"""Qwen3.5 as published: the text model's tensors under a longer prefix, next to a vision model and a draft model.

The projections of a DeltaNet are those of all queries, all keys and all values, one after another.
"""

from __future__ import annotations

from bringup.adapters.algebra.expr import S
from bringup.adapters.hybrid import DELTA_NET, MIXER, by_key_head, channels, hybrid
from bringup.adapters.planning.adapter import Adapter
from bringup.graphs.hybrid import HybridConfig
from bringup.graphs.qwen3_5 import Qwen3_5Config

PLACES = ("model.language_model.", "language_model.")


def adapter(config: Qwen3_5Config) -> Adapter:
    return text_model("qwen3_5", config)


def text_model(name: str, config: HybridConfig) -> Adapter:
    """The rules without those for experts. Published files have `model.language_model.`, those of the text model
    alone `model.`."""
    table = hybrid(name, config)
    table.wrappers = PLACES
    qkv = S(DELTA_NET + "in_proj_qkv.weight", "x m", x=channels(config))
    table[f"{MIXER}in_proj_qkv.weight"] = by_key_head(qkv, "m", config)
    table[f"{MIXER}in_proj_{{x:z|b|a}}.weight"] = S(DELTA_NET + "in_proj_{x}.weight")
    table.drop("visual.{rest:**}", why="the vision model's; this graph is the language model, which reads text")
    return table
