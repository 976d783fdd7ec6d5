"""Nemotron-H and Nemotron 3 in GGUF, two architectures: what a layer has shows in its tensors.

Names: gguf-py, `tensor_mapping.py`; hyperparameters and values: `NemotronHModel` of llama.cpp's converter, which is a
`GraniteHybridModel` (`conversion/nemotron.py`). Rows of q and k are in rope pairs as in `llama`, although no layer has
rope. The last block may be that of a draft.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bringup.adapters.algebra.expr import S
from bringup.adapters.dialects.dialect import DECODER, Dialect
from bringup.adapters.dialects.granitemoehybrid import add_state_space
from bringup.adapters.dialects.lfm2 import KEY_HEADS, by_key_heads
from bringup.adapters.dialects.llama import in_halves
from bringup.adapters.dialects.routing import drop_draft
from bringup.adapters.dialects.tables import without_layers
from bringup.adapters.planning.adapter import Adapter
from bringup.graphs.config.fields import MOST_LAYERS

if TYPE_CHECKING:
    from bringup.adapters.checkpoints.gguf_config import Hyperparameters
    from bringup.graphs.nemotron_h import NemotronHConfig

# Keys for None are read by `derived`, or do not affect the result.
KEYS: dict[str, str | None] = {
    **DECODER,
    "attention.layer_norm_epsilon": None,
    "attention.layer_norm_rms_epsilon": "layer_norm_epsilon",
    KEY_HEADS: None,
    "expert_count": None,
    "expert_feed_forward_length": None,
    "expert_group_count": None,
    "expert_group_used_count": None,
    "expert_shared_count": None,
    "expert_shared_feed_forward_length": None,
    "expert_used_count": None,
    "expert_weights_norm": None,
    "expert_weights_scale": None,
    "feed_forward_length": None,
    "moe_latent_size": "moe_latent_size",
    "nextn_predict_layers": "num_nextn_predict_layers",
    "rope.dimension_count": None,
    "rope.scaling.finetuned": None,
    "ssm.conv_kernel": "conv_kernel",
    "ssm.group_count": "n_groups",
    "ssm.inner_size": None,
    "ssm.state_size": "ssm_state_size",
    "ssm.time_step_rank": "mamba_num_heads",
}
OF_EXPERTS = {
    "expert_count": "n_routed_experts",
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_count": "n_shared_experts",
    "expert_shared_feed_forward_length": "moe_shared_expert_intermediate_size",
}
OF_KINDS = {"ssm_in": "mamba", "attn_q": "attention", "ffn_gate_inp": "moe"}  # others have an MLP


def table(config: NemotronHConfig) -> Adapter:
    gguf = without_layers(config)
    gguf["model.layers.{L}.norm.weight"] = S("blk.{L}.attn_norm.weight")
    add_state_space(gguf, config.mamba)
    mixer = "model.layers.{L}.mixer."
    for x in "qk":
        gguf[f"{mixer}{x}_proj.weight"] = in_halves(x, config.head_dim)["weight"]
    gguf[mixer + "v_proj.weight"] = S("blk.{L}.attn_v.weight")
    gguf[mixer + "o_proj.weight"] = S("blk.{L}.attn_output.weight")
    gguf[mixer + "gate.weight"] = S("blk.{L}.ffn_gate_inp.weight")
    gguf[mixer + "gate.e_score_correction_bias"] = S("blk.{L}.exp_probs_b.bias")
    gguf[mixer + "{x:up|down}_proj.{p:weight|bias}"] = S("blk.{L}.ffn_{x}.{p}")
    gguf[mixer + "shared_experts.{x:up|down}_proj.{p:weight|bias}"] = S("blk.{L}.ffn_{x}_shexp.{p}")
    for x, axes in (("up", "e f m"), ("down", "e m f")):
        gguf[f"{mixer}experts.{x}_proj"] = S(f"blk.{{L}}.ffn_{x}_exps.weight", axes)
    for ours, x in (("fc1", "down"), ("fc2", "up")):
        gguf[f"{mixer}{ours}_latent_proj.{{p:weight|bias}}"] = S(f"blk.{{L}}.ffn_latent_{x}.{{p}}")
    drop_draft(gguf, len(config.kinds))
    return gguf


def derived(hyper: Hyperparameters) -> dict[str, Any]:
    """Kinds, biases and widths from the tensors; those of experts with llama.cpp's defaults."""
    own, tensors = hyper.values, hyper.tensors
    drafts, blocks = own.get("nextn_predict_layers") or 0, own["block_count"]
    layers = blocks - drafts if type(drafts) is int else blocks
    found: dict[str, Any] = {name: own[key] for key, name in OF_EXPERTS.items() if own.get(key)}
    found |= {key: value for key, value in by_key_heads(hyper, "").items() if key == "num_key_value_heads"}
    inner, heads = own.get("ssm.inner_size"), own.get("ssm.time_step_rank")
    if isinstance(inner, int) and isinstance(heads, int) and heads > 0:
        found["mamba_head_dim"] = inner // heads
    ends = {name.partition(".")[2].partition(".")[2]: info for name, info in tensors.items() if name.startswith("blk.")}
    if "ffn_up.weight" in ends:
        found["intermediate_size"] = ends["ffn_up.weight"].shape_in(2)[0]
    if "ffn_gate_inp.weight" in ends:
        found["num_experts_per_tok"] = own.get("expert_used_count", 0)  # no tensor has it, and llama.cpp requires it
    return {
        **found,
        "num_hidden_layers": layers,
        "layers_block_type": [_kind(hyper, index) for index in range(min(layers, MOST_LAYERS + 1))],
        "n_group": own.get("expert_group_count") or 1,
        "topk_group": own.get("expert_group_used_count") or 1,
        "norm_topk_prob": own.get("expert_weights_norm", False),
        "routed_scaling_factor": own.get("expert_weights_scale") or 1.0,
        "mlp_bias": not ends.keys().isdisjoint({"ffn_up.bias", "ffn_up_shexp.bias"}),
        "use_conv_bias": "ssm_conv1d.bias" in ends,
        "use_bias": "ssm_in.bias" in ends,
    }


def _kind(hyper: Hyperparameters, layer: int) -> str:
    return next((kind for x, kind in OF_KINDS.items() if f"blk.{layer}.{x}.weight" in hyper.tensors), "mlp")


dialect = Dialect(
    names=("nemotron_h", "nemotron_h_moe"),
    architecture="NemotronHForCausalLM",
    keys=KEYS,
    fixed={"model_type": "nemotron_h", "mlp_hidden_act": "relu2", "mamba_hidden_act": "silu"},
    derived=derived,
    table=table,
)
