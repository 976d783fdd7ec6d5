"""LFM2-MoE in GGUF: LFM2's names, and one tensor for each expert matrix of a layer.

Names: gguf-py, `tensor_mapping.py`; hyperparameters: `LFM2MoeModel` of llama.cpp's `convert_hf_to_gguf.py`. llama.cpp
divides the selected experts' weights by their sum, and requires the routing bias (`src/models/lfm2.cpp`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bringup.adapters.algebra.expr import S
from bringup.adapters.dialects import lfm2
from bringup.adapters.dialects.dialect import Dialect
from bringup.adapters.dialects.tables import add_experts
from bringup.adapters.planning.adapter import Adapter

if TYPE_CHECKING:
    from bringup.adapters.checkpoints.gguf_config import Hyperparameters
    from bringup.graphs.lfm2_moe import Lfm2MoeConfig

SIGMOID = 2  # gguf-py, `ExpertGatingFuncType`


def table(config: Lfm2MoeConfig) -> Adapter:
    gguf = lfm2.table(config)
    add_experts(gguf)
    gguf["model.layers.{L}.mlp.gate.e_score_correction_bias"] = S("blk.{L}.exp_probs_b.bias")
    return gguf


def by_sigmoid(hyper: Hyperparameters) -> bool:
    return hyper.values.get("expert_gating_func") == SIGMOID


dialect = Dialect(
    names=("lfm2moe",),
    architecture="Lfm2MoeForCausalLM",
    keys={
        **lfm2.KEYS,
        "expert_count": "num_experts",
        "expert_used_count": "num_experts_per_tok",
        "expert_feed_forward_length": "moe_intermediate_size",
        "expert_gating_func": None,
        "leading_dense_block_count": None,
    },
    fixed={"model_type": "lfm2_moe", "norm_topk_prob": True, "use_expert_bias": True},
    derived=lambda hyper: {
        **lfm2.derived(hyper),
        "num_dense_layers": hyper.values.get("leading_dense_block_count", 0),
    },
    table=table,
    when=by_sigmoid,
)
