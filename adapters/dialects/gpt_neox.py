"""GPT-NeoX in GGUF: q of all heads, then k, then v; transformers has them head by head.

Names: gguf-py, `tensor_mapping.py`; layout and hyperparameters: `GPTNeoXModel` of llama.cpp's `convert_hf_to_gguf.py`.
Files do not state which GELU a model has: llama.cpp computes that with tanh, as GPT-NeoX-20B does. Pythia's is exact.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bringup.adapters.algebra.expr import S
from bringup.adapters.dialects.dialect import Dialect, rotary_fraction
from bringup.adapters.planning.adapter import Adapter, tied

if TYPE_CHECKING:
    from bringup.adapters.checkpoints.gguf_config import Hyperparameters
    from bringup.graphs.gpt_neox import GPTNeoXConfig

NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "attention.o_proj": "attn_output",
    "mlp.dense_h_to_4h": "ffn_up",
    "mlp.dense_4h_to_h": "ffn_down",
}


def table(config: GPTNeoXConfig) -> Adapter:
    gguf = Adapter("gpt_neox in GGUF", defaults=("out in", "vocab m"))
    gguf["gpt_neox.embed_in.weight"] = S("token_embd.weight")
    gguf["gpt_neox.final_layer_norm.{p:weight|bias}"] = S("output_norm.{p}")
    for name, stored in NAMES.items():
        gguf[f"gpt_neox.layers.{{L}}.{name}.{{p:weight|bias}}"] = S(f"blk.{{L}}.{stored}.{{p}}")
    for i, (x, h) in enumerate(zip("qkv", "hgg", strict=True)):
        weight = S("blk.{L}.attn_qkv.weight", f"(t {h} d) m", t=3).mv(f"(t {h} d) m -> t ({h} d) m", t=3)
        bias = S("blk.{L}.attn_qkv.bias", f"(t {h} d)", t=3).mv(f"(t {h} d) -> t ({h} d)", t=3)
        gguf[f"gpt_neox.layers.{{L}}.attention.{x}_proj.weight"] = weight.at("t", i)
        gguf[f"gpt_neox.layers.{{L}}.attention.{x}_proj.bias"] = bias.at("t", i)
    gguf["embed_out.weight"] = tied(S("output.weight"), S("token_embd.weight", "vocab m"), when=config.tied_head)
    return gguf


def derived(hyper: Hyperparameters) -> dict[str, Any]:
    own = hyper.values
    width = own["embedding_length"] // own["attention.head_count"]
    return {"rotary_pct": rotary_fraction(own, width), "attention_bias": "blk.0.attn_qkv.bias" in hyper.tensors}


dialect = Dialect(
    names=("gptneox",),
    architecture="GPTNeoXForCausalLM",
    keys={
        "block_count": "num_hidden_layers",
        "context_length": "max_position_embeddings",
        "embedding_length": "hidden_size",
        "feed_forward_length": "intermediate_size",
        "attention.head_count": "num_attention_heads",
        "attention.layer_norm_epsilon": "layer_norm_eps",
        "rope.freq_base": "rotary_emb_base",
        "rope.dimension_count": None,
        "use_parallel_residual": "use_parallel_residual",
    },
    fixed={"model_type": "gpt_neox", "hidden_act": "gelu_pytorch_tanh"},
    derived=derived,
    table=table,
)
