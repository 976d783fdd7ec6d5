"""OLMo 2 in GGUF. Names: gguf-py, `tensor_mapping.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bringup.adapters.algebra.expr import S
from bringup.adapters.dialects.dialect import Dialect
from bringup.adapters.dialects.tables import add_attention, add_mlp, attention_bias, without_layers
from bringup.adapters.planning.adapter import Adapter

if TYPE_CHECKING:
    from bringup.graphs.olmo2 import Olmo2Config


def table(config: Olmo2Config) -> Adapter:
    gguf = without_layers(config)
    gguf["model.layers.{L}.post_attention_layernorm.weight"] = S("blk.{L}.post_attention_norm.weight")
    gguf["model.layers.{L}.post_feedforward_layernorm.weight"] = S("blk.{L}.post_ffw_norm.weight")
    add_attention(gguf)
    add_mlp(gguf)
    return gguf


dialect = Dialect(
    names=("olmo2",),
    architecture="Olmo2ForCausalLM",
    fixed={"model_type": "olmo2", "hidden_act": "silu"},
    derived=attention_bias,
    table=table,
)
