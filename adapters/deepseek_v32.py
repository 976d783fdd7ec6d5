"""DeepSeek-V3.2 as published: V3's tensors and an indexer's."""

from __future__ import annotations

from bringup.adapters.deepseek_table import matrix, table
from bringup.adapters.expr import S
from bringup.adapters.rules import Adapter
from bringup.graphs.deepseek_v32 import DeepseekV32Config


def adapter(config: DeepseekV32Config) -> Adapter:
    deepseek = table("deepseek_v32", config)
    at, q, m = "layers.{L}.self_attn.indexer.", config.q_rank or 0, config.hidden
    for x, shape in (("wq_b", (config.index_heads * config.index_dim, q)), ("wk", (config.index_dim, m))):
        deepseek[f"model.{at}{x}.weight"] = matrix(at + x, shape, config.fp8)
    deepseek[f"model.{at}weights_proj.weight"] = S(at + "weights_proj.weight")
    deepseek[f"model.{at}k_norm.{{p:weight|bias}}"] = S(at + "k_norm.{p}")
    return deepseek
