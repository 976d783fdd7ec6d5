"""Qwen 1 in GGUF. Names: gguf-py, `tensor_mapping.py`: w1 is `ffn_up`, w2 `ffn_gate`.

Hyperparameters: `QwenModel` of llama.cpp's `convert_hf_to_gguf.py`; `feed_forward_length` is the sum of gate and up,
as in the published config. llama.cpp has neither the dynamic theta nor the scaled queries of long prompts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bringup.adapters.algebra.expr import S
from bringup.adapters.dialects.dialect import DECODER, Dialect
from bringup.adapters.dialects.tables import add_mlp, add_norms, without_layers
from bringup.adapters.planning.adapter import Adapter

if TYPE_CHECKING:
    from bringup.adapters.checkpoints.gguf_config import Hyperparameters
    from bringup.graphs.qwen import QWenConfig


def table(config: QWenConfig) -> Adapter:
    gguf = without_layers(config)
    add_norms(gguf)
    for i, (x, h) in enumerate(zip("qkv", "hgg", strict=True)):
        weight = S("blk.{L}.attn_qkv.weight", f"(t {h} d) m", t=3).mv(f"(t {h} d) m -> t ({h} d) m", t=3)
        bias = S("blk.{L}.attn_qkv.bias", f"(t {h} d)", t=3).mv(f"(t {h} d) -> t ({h} d)", t=3)
        gguf[f"model.layers.{{L}}.self_attn.{x}_proj.weight"] = weight.at("t", i)
        gguf[f"model.layers.{{L}}.self_attn.{x}_proj.bias"] = bias.at("t", i)
    gguf["model.layers.{L}.self_attn.o_proj.{p:weight|bias}"] = S("blk.{L}.attn_output.{p}")
    add_mlp(gguf)
    return gguf


def derived(hyper: Hyperparameters) -> dict[str, Any]:
    return {"seq_length": hyper.values["context_length"], "no_bias": "blk.0.attn_output.bias" not in hyper.tensors}


dialect = Dialect(
    names=("qwen",),
    architecture="QWenLMHeadModel",
    keys={
        **DECODER,
        "attention.key_length": "kv_channels",
        "attention.layer_norm_rms_epsilon": "layer_norm_epsilon",
        "rope.freq_base": "rotary_emb_base",
    },
    fixed={"model_type": "qwen", "use_dynamic_ntk": False, "use_logn_attn": False},
    derived=derived,
    table=table,
)
