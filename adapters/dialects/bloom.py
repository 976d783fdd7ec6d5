"""BLOOM in GGUF: q of all heads, then k, then v; transformers has them head by head.

Names: gguf-py, `tensor_mapping.py`; layout and hyperparameters: `BloomModel` of llama.cpp's `convert_hf_to_gguf.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bringup.adapters.algebra.expr import S
from bringup.adapters.dialects.dialect import Dialect
from bringup.adapters.planning.adapter import Adapter, tied

if TYPE_CHECKING:
    from bringup.adapters.checkpoints.gguf_config import Hyperparameters
    from bringup.graphs.bloom import BloomConfig

NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attention.dense": "attn_output",
    "mlp.dense_h_to_4h": "ffn_up",
    "mlp.dense_4h_to_h": "ffn_down",
}


def table(config: BloomConfig) -> Adapter:
    gguf = Adapter("bloom in GGUF", defaults=("out in", "vocab m"))
    gguf["transformer.word_embeddings.weight"] = S("token_embd.weight")
    gguf["transformer.word_embeddings_layernorm.{p:weight|bias}"] = S("token_embd_norm.{p}")
    gguf["transformer.ln_f.{p:weight|bias}"] = S("output_norm.{p}")
    for name, stored in NAMES.items():
        gguf[f"transformer.h.{{L}}.{name}.{{p:weight|bias}}"] = S(f"blk.{{L}}.{stored}.{{p}}")
    weights = S("blk.{L}.attn_qkv.weight", "(t h d) m", t=3).mv("(t h d) m -> t (h d) m", t=3)
    biases = S("blk.{L}.attn_qkv.bias", "(t h d)", t=3).mv("(t h d) -> t (h d)", t=3)
    for i, x in enumerate("qkv"):
        gguf[f"transformer.h.{{L}}.self_attention.{x}_proj.weight"] = weights.at("t", i)
        gguf[f"transformer.h.{{L}}.self_attention.{x}_proj.bias"] = biases.at("t", i)
    gguf["lm_head.weight"] = tied(S("output.weight"), S("token_embd.weight", "vocab m"), when=config.tied_head)
    return gguf


def derived(hyper: Hyperparameters) -> dict[str, Any]:
    """A different number of key heads: a key that BLOOM's config does not have and rejects."""
    heads, shared = (hyper.values.get(f"attention.{key}") for key in ("head_count", "head_count_kv"))
    return {} if shared in (None, 0, heads) else {"num_key_value_heads": shared}


dialect = Dialect(
    names=("bloom",),
    architecture="BloomForCausalLM",
    keys={
        "block_count": "n_layer",
        "context_length": "seq_length",
        "embedding_length": "hidden_size",
        "feed_forward_length": "n_inner",
        "attention.head_count": "n_head",
        "attention.head_count_kv": None,
        "attention.layer_norm_epsilon": "layer_norm_epsilon",
    },
    fixed={"model_type": "bloom"},
    derived=derived,
    table=table,
)
