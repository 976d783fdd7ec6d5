"""DeepSeek-V3.2 as published: V3's tensors and an indexer's."""

from __future__ import annotations

from bringup.adapters.algebra.expr import S
from bringup.adapters.deepseek import matrix, place, table
from bringup.adapters.planning.adapter import Adapter
from bringup.graphs.deepseek_v32 import DeepseekV32Config


def adapter(config: DeepseekV32Config) -> Adapter:
    deepseek = table("deepseek_v32", config)
    add_indexer(deepseek, config)
    return deepseek


def add_indexer(deepseek: Adapter, config: DeepseekV32Config) -> None:
    """The rules of what chooses keys, whether in a model's layers or its draft's."""
    of, q, m = "self_attn.indexer.", config.q_rank or 0, config.hidden
    target, at = f"model.layers.{{L}}.{of}", place(config) + of
    for x, shape in (("wq_b", (config.index_heads * config.index_dim, q)), ("wk", (config.index_dim, m))):
        deepseek[f"{target}{x}.weight"] = matrix(config, of + x, shape)
    deepseek[target + "weights_proj.weight"] = S(at + "weights_proj.weight")
    deepseek[target + "k_norm.{p:weight|bias}"] = S(at + "k_norm.{p}")
