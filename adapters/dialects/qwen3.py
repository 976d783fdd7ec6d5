"""Qwen3 in GGUF. Names: gguf-py, `tensor_mapping.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bringup.adapters.dialects.dialect import Dialect
from bringup.adapters.dialects.tables import add_attention, add_mlp, add_norms, attention_bias, without_layers
from bringup.adapters.planning.adapter import Adapter

if TYPE_CHECKING:
    from bringup.graphs.qwen3 import Qwen3Config


def table(config: Qwen3Config) -> Adapter:
    gguf = without_layers(config)
    add_norms(gguf)
    add_attention(gguf)
    add_mlp(gguf)
    return gguf


dialect = Dialect(
    names=("qwen3",),
    architecture="Qwen3ForCausalLM",
    fixed={"model_type": "qwen3", "hidden_act": "silu"},
    derived=attention_bias,
    table=table,
)
