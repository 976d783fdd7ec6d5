"""EXAONE 3 in GGUF. Names: gguf-py, `tensor_mapping.py`.

Hyperparameters: `ExaoneModel` of llama.cpp's `convert_hf_to_gguf.py`; the factors of Llama 3.1's rope are a tensor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bringup.adapters.algebra.expr import S
from bringup.adapters.dialects.dialect import DECODER, Dialect
from bringup.adapters.planning.adapter import Adapter, tied

if TYPE_CHECKING:
    from bringup.graphs.exaone import ExaoneConfig


def table(config: ExaoneConfig) -> Adapter:
    gguf = Adapter("exaone in GGUF", defaults=("out in", "vocab m"))
    gguf["model.embed_tokens.weight"] = S("token_embd.weight")
    gguf["model.norm.weight"] = S("output_norm.weight")
    gguf["lm_head.weight"] = tied(S("output.weight"), S("token_embd.weight", "vocab m"), when=config.tied_head)
    gguf["model.layers.{L}.input_layernorm.weight"] = S("blk.{L}.attn_norm.weight")
    gguf["model.layers.{L}.post_attention_layernorm.weight"] = S("blk.{L}.ffn_norm.weight")
    gguf["model.layers.{L}.self_attn.{x:q|k|v}_proj.weight"] = S("blk.{L}.attn_{x}.weight")
    gguf["model.layers.{L}.self_attn.o_proj.weight"] = S("blk.{L}.attn_output.weight")
    gguf["model.layers.{L}.mlp.{x:gate|up|down}_proj.weight"] = S("blk.{L}.ffn_{x}.weight")
    gguf.drop("rope_freqs.weight", why="factors of llama3 rope: checked when the config is read from the metadata")
    return gguf


dialect = Dialect(
    names=("exaone",),
    architecture="ExaoneForCausalLM",
    keys={**DECODER, "block_count": "num_layers", "attention.layer_norm_rms_epsilon": "layer_norm_epsilon"},
    fixed={"model_type": "exaone", "activation_function": "silu"},
    table=table,
)
