"""Gemma 2 in GGUF: norms are stored as 1 + weight.

Names: gguf-py, `tensor_mapping.py`; hyperparameters: `Gemma2Model` of llama.cpp's `convert_hf_to_gguf.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bringup.adapters.algebra.expr import S
from bringup.adapters.algebra.values import shift
from bringup.adapters.dialects.dialect import DECODER, Dialect
from bringup.adapters.dialects.tables import add_mlp, attention_bias, without_layers
from bringup.adapters.planning.adapter import Adapter

if TYPE_CHECKING:
    from bringup.adapters.checkpoints.gguf_config import Hyperparameters
    from bringup.graphs.decoder import DecoderConfig

# llama.cpp's names of a layer's norms, by transformers'.
NORMS = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


def table(config: DecoderConfig) -> Adapter:
    gguf = without_layers(config, norm=shift(S("output_norm.weight", "m"), -1))
    for name, stored in NORMS.items():
        gguf[f"model.layers.{{L}}.{name}.weight"] = shift(S(f"blk.{{L}}.{stored}.weight", "m"), -1)
    gguf["model.layers.{L}.self_attn.{x:q|k|v}_proj.{p:weight|bias}"] = S("blk.{L}.attn_{x}.{p}")
    gguf["model.layers.{L}.self_attn.o_proj.{p:weight|bias}"] = S("blk.{L}.attn_output.{p}")
    add_mlp(gguf)
    return gguf


def query_scalar(hyper: Hyperparameters, layers_of_27b: int) -> int:
    """`query_pre_attn_scalar`, which no hyperparameter states: the width of a head, except for the model of 27 billion
    parameters, which llama.cpp identifies by its number of layers (`llama-model.cpp`, `f_attention_scale`)."""
    own = hyper.values
    width = own["embedding_length"] // own["attention.head_count"]
    return width if own["block_count"] == layers_of_27b else own.get("attention.key_length") or width


def derived(hyper: Hyperparameters) -> dict[str, Any]:
    return {"query_pre_attn_scalar": query_scalar(hyper, 46), **attention_bias(hyper)}


dialect = Dialect(
    names=("gemma2",),
    architecture="Gemma2ForCausalLM",
    keys={
        **DECODER,
        "attention.sliding_window": "sliding_window",
        "attn_logit_softcapping": "attn_logit_softcapping",
        "final_logit_softcapping": "final_logit_softcapping",
    },
    fixed={"model_type": "gemma2", "hidden_activation": "gelu_pytorch_tanh"},
    derived=derived,
    table=table,
)
