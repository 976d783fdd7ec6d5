"""Mistral 4 in GGUF: the keys and tensors of DeepSeek, with gate and up of all experts in one tensor.

Architecture `mistral4`: `Mistral3Model.Mistral4Model` of llama.cpp's conversion/mistral3.py. It does not write how
queries grow with their position, and llama.cpp then does not scale them. Here the factor of a file without
`attention.temperature_scale` is 0.1, transformers' default of `llama_4_scaling_beta`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bringup.adapters.dialects import deepseek
from bringup.adapters.dialects.dialect import Dialect
from bringup.adapters.dialects.tables import of_growth
from bringup.adapters.planning.adapter import Adapter
from bringup.graphs.mistral4 import Mistral4Config

if TYPE_CHECKING:
    from bringup.adapters.checkpoints.gguf_config import Hyperparameters


def table(config: Mistral4Config) -> Adapter:
    return deepseek.table(config, fused=True)


def derived(hyper: Hyperparameters) -> dict[str, Any]:
    words = deepseek.derived(hyper)
    del words["num_nextn_predict_layers"]  # Mistral 4 has no draft
    return words | {"rope_scaling": of_growth(hyper, words.get("rope_scaling", {}), absent=0.1)}


dialect = Dialect(
    names=("mistral4",),
    architecture="Mistral4ForCausalLM",
    keys=deepseek.KEYS | {"attention.temperature_scale": None},
    fixed={"model_type": "mistral4", "hidden_act": "silu"},
    derived=derived,
    table=table,
)
