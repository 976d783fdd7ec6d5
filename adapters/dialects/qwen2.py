"""Qwen2 and Qwen2.5 in GGUF. Names: gguf-py, `tensor_mapping.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bringup.adapters.algebra.expr import S
from bringup.adapters.dialects.dialect import Dialect
from bringup.adapters.planning.adapter import Adapter, tied

if TYPE_CHECKING:
    from bringup.graphs.qwen2 import Qwen2Config


def table(config: Qwen2Config) -> Adapter:
    gguf = Adapter("qwen2 in GGUF", defaults=("out in", "vocab m"))
    gguf["model.embed_tokens.weight"] = S("token_embd.weight")
    gguf["model.norm.weight"] = S("output_norm.weight")
    gguf["lm_head.weight"] = tied(S("output.weight"), S("token_embd.weight", "vocab m"), when=config.tied_head)
    gguf["model.layers.{L}.input_layernorm.weight"] = S("blk.{L}.attn_norm.weight")
    gguf["model.layers.{L}.post_attention_layernorm.weight"] = S("blk.{L}.ffn_norm.weight")
    gguf["model.layers.{L}.self_attn.{x:q|k|v}_proj.{p:weight|bias}"] = S("blk.{L}.attn_{x}.{p}")
    gguf["model.layers.{L}.self_attn.o_proj.weight"] = S("blk.{L}.attn_output.weight")
    gguf["model.layers.{L}.mlp.{x:gate|up|down}_proj.weight"] = S("blk.{L}.ffn_{x}.weight")
    return gguf


dialect = Dialect(
    names=("qwen2",),
    architecture="Qwen2ForCausalLM",
    fixed={"model_type": "qwen2", "hidden_act": "silu"},
    table=table,
)
