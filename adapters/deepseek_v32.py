"""DeepSeek-V3.2 as published: V3's tensors and those of the indexer."""

from __future__ import annotations

from bringup.adapters.algebra.expr import S
from bringup.adapters.deepseek import place, table
from bringup.adapters.planning.adapter import Adapter
from bringup.graphs.deepseek_v32 import DeepseekV32Config


def adapter(config: DeepseekV32Config) -> Adapter:
    return indexed("deepseek_v32", config)


def indexed(name: str, config: DeepseekV32Config) -> Adapter:
    """The rules of a model with an indexer."""
    deepseek = table(name, config)
    add_indexer(deepseek, config)
    return deepseek


def add_indexer(deepseek: Adapter, config: DeepseekV32Config) -> None:
    """The rules of the indexer, in a model's layers or in its draft's."""
    target, at = "model.layers.{L}.self_attn.indexer.", place(config) + "self_attn.indexer."
    deepseek[target + "{x:wq_b|wk}.weight"] = S(at + "{x}.weight")
    deepseek[target + "weights_proj.weight"] = S(at + "weights_proj.weight", plain=True)
    deepseek[target + "k_norm.{p:weight|bias}"] = S(at + "k_norm.{p}")
