"""Qwen2 and Qwen2.5 in GGUF. Names: gguf-py, `tensor_mapping.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bringup.adapters.dialects.dialect import Dialect
from bringup.adapters.dialects.tables import add_attention, add_mlp, add_norms, without_layers
from bringup.adapters.planning.adapter import Adapter

if TYPE_CHECKING:
    from bringup.graphs.qwen2 import Qwen2Config


def table(config: Qwen2Config) -> Adapter:
    gguf = without_layers(config)
    add_norms(gguf)
    add_attention(gguf)
    add_mlp(gguf)
    return gguf


dialect = Dialect(
    names=("qwen2",),
    architecture="Qwen2ForCausalLM",
    fixed={"model_type": "qwen2", "hidden_act": "silu"},
    table=table,
)
