"""DeepSeek-V2 and V3 in GGUF: `kv_b` split into a transposed `attn_k_b` and `attn_v_b`; one expert tensor per matrix.

Names: gguf-py, `tensor_mapping.py`; layout and hyperparameters: `DeepseekV2Model` of llama.cpp's
`convert_hf_to_gguf.py`. Files from before April 2025 have an unsplit `attn_kv_b`, and the sizes of a head as in
transformers; newer ones have those of the latent row instead, and the head's under other names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bringup.adapters.algebra.expr import S
from bringup.adapters.checkpoints.gguf_rope import rope_scaling
from bringup.adapters.dialects.dialect import DECODER
from bringup.adapters.dialects.routing import ROUTING, drop_draft, routing
from bringup.adapters.dialects.tables import add_experts, add_mlp, add_norms, without_layers
from bringup.adapters.planning.adapter import Adapter, either

if TYPE_CHECKING:
    from bringup.adapters.checkpoints.gguf_config import Hyperparameters
    from bringup.graphs.deepseek import DeepseekConfig

SOFTMAX, SIGMOID = 1, 2  # gguf-py, `ExpertGatingFuncType`
KEYS = {
    **DECODER,
    **ROUTING,
    "attention.kv_lora_rank": "kv_lora_rank",
    "attention.head_count_kv": None,
    "attention.q_lora_rank": None,
    "attention.key_length": None,
    "attention.key_length_mla": None,
    "attention.value_length": None,
    "attention.value_length_mla": None,
    "rope.dimension_count": "qk_rope_head_dim",
}
NAMES = {
    "q_proj": "attn_q",
    "q_a_proj": "attn_q_a",
    "q_b_proj": "attn_q_b",
    "q_a_layernorm": "attn_q_a_norm",
    "kv_a_proj_with_mqa": "attn_kv_a_mqa",
    "kv_a_layernorm": "attn_kv_a_norm",
    "o_proj": "attn_output",
}


def gating(hyper: Hyperparameters) -> int:
    """The scoring function of experts. V2's files from before V3 do not state it: softmax (`load_hparams`)."""
    return hyper.values.get("expert_gating_func") or SOFTMAX


def table(config: DeepseekConfig, *, fused: bool = False) -> Adapter:
    """`fused` is that of `add_experts`."""
    h, n, v = config.num_heads, config.plain_dim, config.value_dim
    gguf = without_layers(config)
    layer = "model.layers.{L}."
    add_norms(gguf)
    for name, stored in NAMES.items():
        gguf[f"{layer}self_attn.{name}.weight"] = S(f"blk.{{L}}.{stored}.weight")
    whole = S("blk.{L}.attn_kv_b.weight", "(h x) c", x=n + v).mv("(h x) c -> h x c", h=h)
    for x, axis, axes, part in zip("kv", "nv", ("h c n", "h v c"), whole.split("x", n, v), strict=True):
        newer = S(f"blk.{{L}}.attn_{x}_b.weight", axes).mv(f"{axes} -> (h {axis}) c")
        gguf[f"{layer}self_attn.{x}_b_proj.weight"] = either(newer, part.mv(f"h {axis} c -> (h {axis}) c"))
    add_mlp(gguf)
    add_experts(gguf, fused=fused)
    gguf[layer + "mlp.gate.e_score_correction_bias"] = S("blk.{L}.exp_probs_b.bias")
    gguf[layer + "mlp.shared_experts.{x:gate|up|down}_proj.weight"] = S("blk.{L}.ffn_{x}_shexp.weight")
    drop_draft(gguf, config.layers.stop)
    return gguf


def derived(hyper: Hyperparameters) -> dict[str, Any]:
    """Sizes of a head, and rope's settings.

    Yarn's `yarn_log_multiplier` is a tenth of `mscale_all_dim`. `mscale`, which files do not have, has the same value
    in every published config, so that the two cancel out in the angles.
    """
    own = hyper.values
    key = own.get("attention.key_length_mla") or own.get("attention.key_length") or 0
    rotary = own.get("rope.dimension_count") or 0
    words = routing(hyper) | {
        "q_lora_rank": own.get("attention.q_lora_rank") or None,
        "qk_nope_head_dim": key - rotary if type(key) is type(rotary) is int else key,
        "v_head_dim": own.get("attention.value_length_mla") or own.get("attention.value_length"),
    }
    scaling = rope_scaling(hyper, own.get("rope.freq_base"))
    if scaling and type(log := scaling.pop("yarn_log_multiplier", None)) is float:
        scaling |= dict.fromkeys(("mscale", "mscale_all_dim"), float(f"{10 * log:.7g}"))
    return words | ({"rope_scaling": scaling} if scaling else {})
