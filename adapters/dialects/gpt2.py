"""GPT-2 in GGUF: matrices stored [out, in]; transformers' Conv1D has [in, out].

Names: gguf-py, `tensor_mapping.py`; hyperparameters: `GPT2Model` of llama.cpp's `convert_hf_to_gguf.py`. Older files
have the head as well, which is a copy of the embedding.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bringup.adapters.algebra.expr import S
from bringup.adapters.dialects.dialect import Dialect
from bringup.adapters.planning.adapter import Adapter, tied

if TYPE_CHECKING:
    from bringup.graphs.gpt2 import GPT2Config

NAMES = {
    "ln_1": "attn_norm",
    "ln_2": "ffn_norm",
    "attn.c_attn": "attn_qkv",
    "attn.c_proj": "attn_output",
    "mlp.c_fc": "ffn_up",
    "mlp.c_proj": "ffn_down",
}


def table(config: GPT2Config) -> Adapter:
    gguf = Adapter("gpt2 in GGUF", defaults=("out in", "vocab m", "position m"))
    gguf["transformer.wte.weight"] = S("token_embd.weight")
    gguf["transformer.wpe.weight"] = S("position_embd.weight")
    gguf["transformer.ln_f.{p:weight|bias}"] = S("output_norm.{p}")
    for name, stored in NAMES.items():
        gguf[f"transformer.h.{{L}}.{name}.{{p:weight|bias}}"] = S(f"blk.{{L}}.{stored}.{{p}}")
    gguf["lm_head.weight"] = tied(S("output.weight"), S("token_embd.weight", "vocab m"), when=config.tied_head)
    return gguf


dialect = Dialect(
    names=("gpt2",),
    architecture="GPT2LMHeadModel",
    keys={
        "block_count": "n_layer",
        "context_length": "n_positions",
        "embedding_length": "n_embd",
        "feed_forward_length": "n_inner",
        "attention.head_count": "n_head",
        "attention.layer_norm_epsilon": "layer_norm_epsilon",
    },
    fixed={"model_type": "gpt2", "activation_function": "gelu_new"},
    table=table,
)
