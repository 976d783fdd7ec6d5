"""Qwen3-Next in GGUF. Names: gguf-py, `tensor_mapping.py`; hyperparameters and layouts: llama.cpp, `qwen3next.cpp`.

llama.cpp has experts in every layer, divides the selected experts' weights by their sum, and stores the gate of the
shared expert as a vector. A DeltaNet's queries, keys and values are those of all heads one after another; older files
have the tensor of the checkpoint, `ssm_in`. Its decay is stored as -exp(A_log).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bringup.adapters.algebra.expr import S
from bringup.adapters.algebra.values import log, scale, shift
from bringup.adapters.dialects.dialect import DECODER, Dialect, turned_part
from bringup.adapters.hybrid import by_key_head, channels
from bringup.adapters.planning.adapter import Adapter, either, tied
from bringup.adapters.qwen3_next import gates, of_key_heads

if TYPE_CHECKING:
    from bringup.adapters.checkpoints.gguf_config import Hyperparameters
    from bringup.graphs.qwen3_next import Qwen3NextConfig


def table(config: Qwen3NextConfig) -> Adapter:
    gguf = Adapter("qwen3_next in GGUF", defaults=("out in", "vocab m"))
    gguf["model.embed_tokens.weight"] = S("token_embd.weight")
    gguf["model.norm.weight"] = shift(S("output_norm.weight", "m"), -1)
    gguf["lm_head.weight"] = tied(S("output.weight"), S("token_embd.weight", "vocab m"), when=config.tied_head)
    gguf["model.layers.{L}.input_layernorm.weight"] = shift(S("blk.{L}.attn_norm.weight", "m"), -1)
    after = shift(S("blk.{L}.post_attention_norm.weight", "m"), -1)
    gguf["model.layers.{L}.post_attention_layernorm.weight"] = after

    queries = S("blk.{L}.attn_q.weight", "(h t d) m", t=2).mv("(h t d) m -> t (h d) m", t=2)
    gguf["model.layers.{L}.self_attn.q_proj.weight"] = queries.at("t", 0)
    gguf["model.layers.{L}.self_attn.output_gate_proj.weight"] = queries.at("t", 1)
    gguf["model.layers.{L}.self_attn.{x:k|v}_proj.weight"] = S("blk.{L}.attn_{x}.weight")
    gguf["model.layers.{L}.self_attn.o_proj.weight"] = S("blk.{L}.attn_output.weight")
    gguf["model.layers.{L}.self_attn.{x:q|k}_norm.weight"] = shift(S("blk.{L}.attn_{x}_norm.weight", "m"), -1)

    net, width = "model.layers.{L}.mixer.", channels(config)
    older_qkv, older_z = of_key_heads("blk.{L}.ssm_in.weight", config)
    newer_qkv = by_key_head(S("blk.{L}.attn_qkv.weight", "x m", x=width), "m", config)
    gguf[net + "in_proj_qkv.weight"] = either(newer_qkv, older_qkv)
    gguf[net + "in_proj_z.weight"] = either(S("blk.{L}.attn_gate.weight", "out in"), older_z)
    for x, rows in zip("ba", gates("blk.{L}.ssm_ba.weight"), strict=True):
        gguf[f"{net}in_proj_{x}.weight"] = rows
    gguf[net + "conv1d.weight"] = by_key_head(S("blk.{L}.ssm_conv1d.weight", "x tap", x=width), "tap", config)
    gguf[net + "dt_bias"] = S("blk.{L}.ssm_dt.bias")
    gguf[net + "A_log"] = log(scale(S("blk.{L}.ssm_a", "(h r)"), -1))
    gguf[net + "norm.weight"] = S("blk.{L}.ssm_norm.weight")
    gguf[net + "out_proj.weight"] = S("blk.{L}.ssm_out.weight")

    gguf["model.layers.{L}.mlp.gate.weight"] = S("blk.{L}.ffn_gate_inp.weight")
    gate = S("blk.{L}.ffn_gate_inp_shexp.weight", "(s m)")
    gguf["model.layers.{L}.mlp.shared_expert_gate.weight"] = gate.mv("(s m) -> s m", s=1)
    gguf["model.layers.{L}.mlp.shared_expert.{x:gate|up|down}_proj.weight"] = S("blk.{L}.ffn_{x}_shexp.weight")
    for x, axes in (("gate", "e f m"), ("up", "e f m"), ("down", "e m f")):
        gguf[f"model.layers.{{L}}.mlp.experts.{x}_proj"] = S(f"blk.{{L}}.ffn_{x}_exps.weight", axes)
    return gguf


def derived(hyper: Hyperparameters) -> dict[str, Any]:
    """The rotated part of a head, and the channels of a value head."""
    own = hyper.values
    inner, heads = own.get("ssm.inner_size"), own.get("ssm.time_step_rank")
    if isinstance(inner, int) and isinstance(heads, int) and heads > 0:
        inner //= heads
    part = turned_part(own, own.get("attention.key_length"))
    return {"partial_rotary_factor": part, "linear_value_head_dim": inner}


dialect = Dialect(
    names=("qwen3next",),
    architecture="Qwen3NextForCausalLM",
    keys={
        **DECODER,
        "expert_count": "num_experts",
        "expert_used_count": "num_experts_per_tok",
        "expert_feed_forward_length": "moe_intermediate_size",
        "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
        "full_attention_interval": "full_attention_interval",
        "rope.dimension_count": None,
        "ssm.conv_kernel": "linear_conv_kernel_dim",
        "ssm.group_count": "linear_num_key_heads",
        "ssm.inner_size": None,
        "ssm.state_size": "linear_key_head_dim",
        "ssm.time_step_rank": "linear_num_value_heads",
    },
    fixed={"model_type": "qwen3_next", "hidden_act": "silu", "norm_topk_prob": True},
    derived=derived,
    table=table,
)
