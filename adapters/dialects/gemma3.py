"""Gemma 3 in GGUF: Gemma 2's names, with norms of queries and keys.

Names: gguf-py, `tensor_mapping.py`; hyperparameters: `Gemma3Model` of llama.cpp's `convert_hf_to_gguf.py`. Scaling of
rope applies to layers with full attention. That every sixth layer has it, and the theta of the others, are in
llama.cpp's code (`llama-model.cpp`, `LLM_ARCH_GEMMA3`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bringup.adapters.algebra.expr import S
from bringup.adapters.algebra.values import shift
from bringup.adapters.dialects import gemma2
from bringup.adapters.dialects.dialect import DECODER, Dialect
from bringup.adapters.dialects.tables import attention_bias
from bringup.adapters.planning.adapter import Adapter

if TYPE_CHECKING:
    from bringup.adapters.checkpoints.gguf_config import Hyperparameters
    from bringup.graphs.gemma3 import Gemma3Config


def table(config: Gemma3Config) -> Adapter:
    gguf = gemma2.table(config)
    gguf["model.layers.{L}.self_attn.{x:q|k}_norm.weight"] = shift(S("blk.{L}.attn_{x}_norm.weight", "m"), -1)
    return gguf


def derived(hyper: Hyperparameters) -> dict[str, Any]:
    scalar = gemma2.query_scalar(hyper, 62)
    every = {} if hyper.values.get("attention.sliding_window") else {"sliding_window_pattern": 1}  # full attention
    return {"query_pre_attn_scalar": scalar, **attention_bias(hyper)} | every


dialect = Dialect(
    names=("gemma3",),
    architecture="Gemma3ForCausalLM",
    keys={
        **DECODER,
        "attention.sliding_window": "sliding_window",
        "final_logit_softcapping": "final_logit_softcapping",
        "rope.freq_base_swa": "rope_local_base_freq",
    },
    fixed={
        "model_type": "gemma3_text",
        "hidden_activation": "gelu_pytorch_tanh",
        "rope_local_base_freq": 10000.0,
        "sliding_window_pattern": 6,
    },
    derived=derived,
    table=table,
)
