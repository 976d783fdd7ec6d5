"""gpt-oss in GGUF: one tensor for each expert matrix of a layer, gate and up separate, often in MXFP4 blocks.

Names: gguf-py, `tensor_mapping.py`; hyperparameters: `GptOssModel` of llama.cpp's `convert_hf_to_gguf.py`. No key
states whether yarn's range is rounded to complete pairs: the published model's is not (openai/gpt-oss, torch/model.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bringup.adapters.algebra.expr import S
from bringup.adapters.checkpoints.gguf_rope import rope_scaling
from bringup.adapters.dialects.dialect import DECODER, Dialect
from bringup.adapters.dialects.tables import add_attention, attention_bias, without_layers
from bringup.adapters.planning.adapter import Adapter

if TYPE_CHECKING:
    from bringup.adapters.checkpoints.gguf_config import Hyperparameters
    from bringup.graphs.gpt_oss import GptOssConfig


def table(config: GptOssConfig) -> Adapter:
    gguf = without_layers(config)
    layer = "model.layers.{L}."
    gguf[layer + "input_layernorm.weight"] = S("blk.{L}.attn_norm.weight")
    gguf[layer + "post_attention_layernorm.weight"] = S("blk.{L}.post_attention_norm.weight")
    add_attention(gguf)
    gguf[layer + "self_attn.sinks"] = S("blk.{L}.attn_sinks.weight")
    gguf[layer + "mlp.router.{p:weight|bias}"] = S("blk.{L}.ffn_gate_inp.{p}")
    for x, rows, column in (("gate", "f", "m"), ("up", "f", "m"), ("down", "m", "f")):
        gguf[f"{layer}mlp.experts.{x}_proj"] = S(f"blk.{{L}}.ffn_{x}_exps.weight", f"e {rows} {column}")
        gguf[f"{layer}mlp.experts.{x}_proj_bias"] = S(f"blk.{{L}}.ffn_{x}_exps.bias", f"e {rows}")
    return gguf


def derived(hyper: Hyperparameters) -> dict[str, Any]:
    """A file without a key for rope scaling has none; in the family's config the default is yarn."""
    own = hyper.values
    scaling = rope_scaling(hyper, own.get("rope.freq_base")) or {"rope_type": "default"}
    if scaling["rope_type"] == "yarn":
        scaling["truncate"] = False
    return {"rope_scaling": scaling, **attention_bias(hyper)}


dialect = Dialect(
    names=("gpt-oss",),
    architecture="GptOssForCausalLM",
    keys={
        **DECODER,
        "attention.sliding_window": "sliding_window",
        "expert_count": "num_local_experts",
        "expert_used_count": "num_experts_per_tok",
        "feed_forward_length": None,
        "expert_feed_forward_length": "intermediate_size",
    },
    fixed={"model_type": "gpt_oss", "hidden_act": "silu"},
    derived=derived,
    table=table,
)
