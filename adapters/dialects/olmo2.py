"""OLMo 2 in GGUF. Names: gguf-py, `tensor_mapping.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bringup.adapters.algebra.expr import S
from bringup.adapters.dialects.dialect import Dialect
from bringup.adapters.planning.adapter import Adapter, tied

if TYPE_CHECKING:
    from bringup.adapters.checkpoints.gguf_config import Hyperparameters
    from bringup.graphs.olmo2 import Olmo2Config


def table(config: Olmo2Config) -> Adapter:
    gguf = Adapter("olmo2 in GGUF", defaults=("out in", "vocab m"))
    gguf["model.embed_tokens.weight"] = S("token_embd.weight")
    gguf["model.norm.weight"] = S("output_norm.weight")
    gguf["lm_head.weight"] = tied(S("output.weight"), S("token_embd.weight", "vocab m"), when=config.tied_head)
    gguf["model.layers.{L}.post_attention_layernorm.weight"] = S("blk.{L}.post_attention_norm.weight")
    gguf["model.layers.{L}.post_feedforward_layernorm.weight"] = S("blk.{L}.post_ffw_norm.weight")
    gguf["model.layers.{L}.self_attn.{x:q|k|v}_proj.{p:weight|bias}"] = S("blk.{L}.attn_{x}.{p}")
    gguf["model.layers.{L}.self_attn.o_proj.{p:weight|bias}"] = S("blk.{L}.attn_output.{p}")
    gguf["model.layers.{L}.self_attn.{x:q|k}_norm.weight"] = S("blk.{L}.attn_{x}_norm.weight")
    gguf["model.layers.{L}.mlp.{x:gate|up|down}_proj.weight"] = S("blk.{L}.ffn_{x}.weight")
    return gguf


def derived(hyper: Hyperparameters) -> dict[str, Any]:
    return {"attention_bias": "blk.0.attn_q.bias" in hyper.tensors}


dialect = Dialect(
    names=("olmo2",),
    architecture="Olmo2ForCausalLM",
    fixed={"model_type": "olmo2", "hidden_act": "silu"},
    derived=derived,
    table=table,
)
