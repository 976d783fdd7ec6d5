"""What the tables of Qwen3-Next and Qwen3.5 in GGUF share. Names: gguf-py, `tensor_mapping.py`.

Norms are stored with 1 added, except that of a DeltaNet, whose decay is stored as -exp(A_log) (llama.cpp's converter,
`conversion/qwen.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from bringup.adapters.algebra.expr import S
from bringup.adapters.algebra.values import log, scale, shift
from bringup.adapters.dialects.dialect import DECODER, rotary_fraction
from bringup.adapters.dialects.tables import without_layers
from bringup.adapters.hybrid import MIXER, by_key_head, by_value_head, channels
from bringup.adapters.planning.adapter import Adapter
from bringup.graphs.hybrid import HybridConfig

if TYPE_CHECKING:
    from bringup.adapters.checkpoints.gguf_config import Hyperparameters

# Keys for None are read by `derived`.
KEYS: Mapping[str, str | None] = {
    **DECODER,
    "full_attention_interval": "full_attention_interval",
    "rope.dimension_count": None,
    "ssm.conv_kernel": "linear_conv_kernel_dim",
    "ssm.group_count": "linear_num_key_heads",
    "ssm.inner_size": None,
    "ssm.state_size": "linear_key_head_dim",
    "ssm.time_step_rank": "linear_num_value_heads",
}


def hybrid(config: HybridConfig, *, tiled: bool) -> Adapter:
    """The rules without those for MLPs and experts, and for the projections into a DeltaNet.

    `tiled`: value heads are in the order of `by_value_head`.
    """
    gguf = without_layers(config, norm=shift(S("output_norm.weight", "m"), -1))
    gguf["model.layers.{L}.input_layernorm.weight"] = shift(S("blk.{L}.attn_norm.weight", "m"), -1)
    after = shift(S("blk.{L}.post_attention_norm.weight", "m"), -1)
    gguf["model.layers.{L}.post_attention_layernorm.weight"] = after

    queries = S("blk.{L}.attn_q.weight", "(h t d) m", t=2).mv("(h t d) m -> t (h d) m", t=2)
    gguf["model.layers.{L}.self_attn.q_proj.weight"] = queries.at("t", 0)
    gguf["model.layers.{L}.self_attn.output_gate_proj.weight"] = queries.at("t", 1)
    gguf["model.layers.{L}.self_attn.{x:k|v}_proj.weight"] = S("blk.{L}.attn_{x}.weight")
    gguf["model.layers.{L}.self_attn.o_proj.weight"] = S("blk.{L}.attn_output.weight")
    gguf["model.layers.{L}.self_attn.{x:q|k}_norm.weight"] = shift(S("blk.{L}.attn_{x}_norm.weight", "m"), -1)

    conv = S("blk.{L}.ssm_conv1d.weight", "x tap", x=channels(config))
    gguf[f"{MIXER}conv1d.weight"] = by_key_head(conv, "tap", config, tiled=tiled)
    gguf[f"{MIXER}norm.weight"] = S("blk.{L}.ssm_norm.weight")
    order = "r h" if tiled else "h r"
    bias, out = S("blk.{L}.ssm_dt.bias", f"({order})"), S("blk.{L}.ssm_out.weight", f"m ({order} v)")
    decay = log(scale(S("blk.{L}.ssm_a", f"({order})"), -1))
    if tiled:
        bias, decay = (by_value_head(each, "({})", config) for each in (bias, decay))
        out = by_value_head(out, "m ({} v)", config)
    gguf[f"{MIXER}dt_bias"], gguf[f"{MIXER}A_log"], gguf[f"{MIXER}out_proj.weight"] = bias, decay, out
    return gguf


def derived(hyper: Hyperparameters) -> dict[str, Any]:
    """The rotated part of a head, and the channels of a value head."""
    own = hyper.values
    inner, heads = own.get("ssm.inner_size"), own.get("ssm.time_step_rank")
    if isinstance(inner, int) and isinstance(heads, int) and heads > 0:
        inner //= heads
    part = rotary_fraction(own, own.get("attention.key_length"))
    return {"partial_rotary_factor": part, "linear_value_head_dim": inner}
