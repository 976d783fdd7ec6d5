"""DeepSeek-V3.2 in GGUF: V3's keys and tensors, and those of the indexer.

Architecture `deepseek32`: `DeepseekV32Model` of llama.cpp's conversion/deepseek.py; the indexer's names are those of
gguf-py, `constants.py`. RoPE rotates halves of its channels there too, so no row is moved.
"""

from __future__ import annotations

from bringup.adapters.algebra.expr import S
from bringup.adapters.dialects import deepseek
from bringup.adapters.dialects.dialect import Dialect
from bringup.adapters.planning.adapter import Adapter
from bringup.graphs.deepseek_v32 import DeepseekV32Config

KEYS = {
    "attention.indexer.head_count": "index_n_heads",
    "attention.indexer.key_length": "index_head_dim",
    "attention.indexer.top_k": "index_topk",
}
NAMES = {"wq_b": "attn_q_b", "wk": "attn_k", "weights_proj": "proj"}


def table(config: DeepseekV32Config) -> Adapter:
    gguf = deepseek.table(config)
    indexer = "model.layers.{L}.self_attn.indexer."
    for name, stored in NAMES.items():
        gguf[f"{indexer}{name}.weight"] = S(f"blk.{{L}}.indexer.{stored}.weight")
    gguf[indexer + "k_norm.{p:weight|bias}"] = S("blk.{L}.indexer.k_norm.{p}")
    return gguf


dialect = Dialect(
    names=("deepseek32",),
    architecture="DeepseekV32ForCausalLM",
    keys=deepseek.KEYS | KEYS,
    fixed={"model_type": "deepseek_v32", "hidden_act": "silu"},
    derived=deepseek.derived,
    table=table,
)
