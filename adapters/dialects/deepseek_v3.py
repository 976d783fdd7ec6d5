"""DeepSeek-V3 in GGUF: a `deepseek2` with sigmoid scores of experts and a routing bias. GLM-4.7-Flash is one too."""

from __future__ import annotations

from bringup.adapters.dialects import deepseek
from bringup.adapters.dialects.dialect import Dialect

dialect = Dialect(
    names=("deepseek2",),
    architecture="DeepseekV3ForCausalLM",
    keys=deepseek.KEYS,
    fixed={"model_type": "deepseek_v3", "hidden_act": "silu"},
    derived=deepseek.derived,
    table=deepseek.table,
    when=lambda hyper: deepseek.gating(hyper) == deepseek.SIGMOID,
)
