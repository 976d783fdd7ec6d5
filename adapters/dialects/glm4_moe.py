"""GLM-4.5 in GGUF: one tensor for each expert matrix of a layer; the last layers may be a draft's.

Names: gguf-py, `tensor_mapping.py`; hyperparameters: `Glm4MoeModel` of llama.cpp's `convert_hf_to_gguf.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bringup.adapters.algebra.expr import S
from bringup.adapters.dialects.dialect import DECODER, Dialect, rotary_fraction
from bringup.adapters.dialects.routing import ROUTING, drop_draft, routing
from bringup.adapters.dialects.tables import add_attention, add_experts, add_mlp, attention_bias, without_layers
from bringup.adapters.planning.adapter import Adapter

if TYPE_CHECKING:
    from bringup.adapters.checkpoints.gguf_config import Hyperparameters
    from bringup.graphs.glm4_moe import Glm4MoeConfig

SIGMOID = 2  # gguf-py, `ExpertGatingFuncType`


def table(config: Glm4MoeConfig) -> Adapter:
    gguf = without_layers(config)
    layer = "model.layers.{L}."
    gguf[layer + "input_layernorm.weight"] = S("blk.{L}.attn_norm.weight")
    gguf[layer + "post_attention_layernorm.weight"] = S("blk.{L}.post_attention_norm.weight")
    add_attention(gguf)
    add_mlp(gguf)
    add_experts(gguf)
    gguf[layer + "mlp.gate.e_score_correction_bias"] = S("blk.{L}.exp_probs_b.bias")
    gguf[layer + "mlp.shared_experts.{x:gate|up|down}_proj.weight"] = S("blk.{L}.ffn_{x}_shexp.weight")
    drop_draft(gguf, len(config.windows))
    return gguf


def derived(hyper: Hyperparameters) -> dict[str, Any]:
    own = hyper.values
    width = own.get("attention.key_length") or own["embedding_length"] // own["attention.head_count"]
    return {
        **routing(hyper),
        "partial_rotary_factor": rotary_fraction(own, width),
        **attention_bias(hyper),
        "use_qk_norm": "blk.0.attn_q_norm.weight" in hyper.tensors,
    }


dialect = Dialect(
    names=("glm4moe",),
    architecture="Glm4MoeForCausalLM",
    keys={**DECODER, **ROUTING, "rope.dimension_count": None},
    fixed={"model_type": "glm4_moe", "hidden_act": "silu"},
    derived=derived,
    table=table,
    when=lambda hyper: hyper.values.get("expert_gating_func", SIGMOID) in (0, SIGMOID),
)
