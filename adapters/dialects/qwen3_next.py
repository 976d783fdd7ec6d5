"""Qwen3-Next in GGUF. Hyperparameters and layouts: llama.cpp, `qwen3next.cpp`.

llama.cpp divides the selected experts' weights by their sum. A DeltaNet's queries, keys and values are those of all
heads one after another; older files have the tensor of the checkpoint, `ssm_in`.
"""

from __future__ import annotations

from bringup.adapters.algebra.expr import S
from bringup.adapters.dialects.dialect import Dialect
from bringup.adapters.dialects.hybrid import KEYS, derived, hybrid
from bringup.adapters.dialects.shared_experts import EXPERTS, add_shared_experts
from bringup.adapters.hybrid import MIXER, by_key_head, channels
from bringup.adapters.planning.adapter import Adapter, either
from bringup.adapters.qwen3_next import gates, of_key_heads
from bringup.graphs.qwen3_next import Qwen3NextConfig


def table(config: Qwen3NextConfig) -> Adapter:
    gguf = hybrid(config, tiled=False)
    older_qkv, older_z = of_key_heads("blk.{L}.ssm_in.weight", config)
    newer_qkv = by_key_head(S("blk.{L}.attn_qkv.weight", "x m", x=channels(config)), "m", config)
    gguf[f"{MIXER}in_proj_qkv.weight"] = either(newer_qkv, older_qkv)
    gguf[f"{MIXER}in_proj_z.weight"] = either(S("blk.{L}.attn_gate.weight", "out in"), older_z)
    for x, rows in zip("ba", gates("blk.{L}.ssm_ba.weight"), strict=True):
        gguf[f"{MIXER}in_proj_{x}.weight"] = rows
    add_shared_experts(gguf)
    return gguf


dialect = Dialect(
    names=("qwen3next",),
    architecture="Qwen3NextForCausalLM",
    keys={**KEYS, **EXPERTS},
    fixed={"model_type": "qwen3_next", "hidden_act": "silu", "norm_topk_prob": True},
    derived=derived,
    table=table,
)
