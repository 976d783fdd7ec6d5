"""EXAONE 3 in GGUF. Names: gguf-py, `tensor_mapping.py`.

Hyperparameters: `ExaoneModel` of llama.cpp's `convert_hf_to_gguf.py`; the factors of Llama 3.1's rope are a tensor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bringup.adapters.dialects.dialect import DECODER, Dialect
from bringup.adapters.dialects.tables import add_attention, add_mlp, add_norms, without_layers
from bringup.adapters.planning.adapter import Adapter

if TYPE_CHECKING:
    from bringup.graphs.exaone import ExaoneConfig


def table(config: ExaoneConfig) -> Adapter:
    gguf = without_layers(config)
    add_norms(gguf)
    add_attention(gguf)
    add_mlp(gguf)
    gguf.drop("rope_freqs.weight", why="factors of llama3 rope: checked when the config is read from the metadata")
    return gguf


dialect = Dialect(
    names=("exaone",),
    architecture="ExaoneForCausalLM",
    keys={**DECODER, "block_count": "num_layers", "attention.layer_norm_rms_epsilon": "layer_norm_epsilon"},
    fixed={"model_type": "exaone", "activation_function": "silu"},
    table=table,
)
