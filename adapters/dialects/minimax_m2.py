"""MiniMax-M2 in GGUF: one tensor for each expert matrix of a layer.

Names: gguf-py, `tensor_mapping.py`; hyperparameters: `MiniMaxM2Model` of llama.cpp's `conversion/minimax.py`, and what
llama.cpp reads: `src/models/minimax-m2.cpp`.
"""

from __future__ import annotations

from bringup.adapters.algebra.expr import S
from bringup.adapters.dialects.dialect import DECODER, Dialect
from bringup.adapters.dialects.tables import LAYER, add_attention, add_experts, add_norms, without_layers
from bringup.adapters.planning.adapter import Adapter
from bringup.graphs.minimax_m2 import MiniMaxM2Config

SIGMOID = 2  # gguf-py, `ExpertGatingFuncType`


def table(config: MiniMaxM2Config) -> Adapter:
    gguf = without_layers(config)
    add_norms(gguf)
    add_attention(gguf)
    add_experts(gguf)
    gguf[LAYER + "mlp.gate.e_score_correction_bias"] = S("blk.{L}.exp_probs_b.bias")
    return gguf


dialect = Dialect(
    names=("minimax-m2",),
    architecture="MiniMaxM2ForCausalLM",
    keys={
        **DECODER,
        "feed_forward_length": None,
        "expert_count": "num_local_experts",
        "expert_feed_forward_length": "intermediate_size",
        "expert_gating_func": None,
        "expert_used_count": "num_experts_per_tok",
        "rope.dimension_count": "rotary_dim",
    },
    fixed={"model_type": "minimax_m2", "hidden_act": "silu"},
    table=table,
    when=lambda hyper: hyper.values.get("expert_gating_func") == SIGMOID,
)
