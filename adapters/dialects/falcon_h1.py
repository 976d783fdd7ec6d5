"""Falcon-H1 in GGUF: the converter multiplies weights by the config's factors, so that files have none.

Names: gguf-py, `tensor_mapping.py`; hyperparameters and values: `FalconH1Model` and `Mamba2Model` of llama.cpp's
converter (`conversion/falcon_h1.py`, `conversion/mamba.py`); a norm comes after the gate, and the mixer has no biases
(`src/models/falcon-h1.cpp`). A tied head is the embedding, multiplied by the factor of the embedding instead of that of
the logits: the logits of such a file are those of the checkpoint up to a factor, as in llama.cpp.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bringup.adapters.algebra.expr import S
from bringup.adapters.dialects.dialect import DECODER, Dialect
from bringup.adapters.dialects.granitemoehybrid import add_state_space
from bringup.adapters.planning.adapter import Adapter, tied

if TYPE_CHECKING:
    from bringup.adapters.checkpoints.gguf_config import Hyperparameters
    from bringup.graphs.falcon_h1 import FalconH1Config

KEYS: dict[str, str | None] = {
    **DECODER,
    "ssm.conv_kernel": "mamba_d_conv",
    "ssm.group_count": "mamba_n_groups",
    "ssm.inner_size": "mamba_d_ssm",
    "ssm.state_size": "mamba_d_state",
    "ssm.time_step_rank": "mamba_n_heads",
}


def table(config: FalconH1Config) -> Adapter:
    gguf = Adapter("falcon_h1 in GGUF", defaults=("out in", "vocab m"))
    gguf["model.embed_tokens.weight"] = S("token_embd.weight")
    gguf["model.norm.weight"] = S("output_norm.weight")
    gguf["lm_head.weight"] = tied(S("output.weight"), S("token_embd.weight", "vocab m"), when=config.tied_head)
    layer = "model.layers.{L}."
    gguf[layer + "input_layernorm.weight"] = S("blk.{L}.attn_norm.weight")
    gguf[layer + "post_attention_layernorm.weight"] = S("blk.{L}.ffn_norm")  # without a suffix in these files
    gguf[layer + "self_attn.{x:q|k|v}_proj.{p:weight|bias}"] = S("blk.{L}.attn_{x}.{p}")
    gguf[layer + "self_attn.o_proj.{p:weight|bias}"] = S("blk.{L}.attn_output.{p}")
    gguf[layer + "mlp.{x:gate|up|down}_proj.{p:weight|bias}"] = S("blk.{L}.ffn_{x}.{p}")
    add_state_space(gguf, config.mamba)
    return gguf


def derived(hyper: Hyperparameters) -> dict[str, Any]:
    """What the tensors of the first layer show."""
    return {
        "attention_bias": "blk.0.attn_q.bias" in hyper.tensors,
        "mlp_bias": "blk.0.ffn_gate.bias" in hyper.tensors,
        "mamba_conv_bias": "blk.0.ssm_conv1d.bias" in hyper.tensors,
        "mamba_rms_norm": "blk.0.ssm_norm.weight" in hyper.tensors,
    }


dialect = Dialect(
    names=("falcon-h1",),
    architecture="FalconH1ForCausalLM",
    keys=KEYS,
    fixed={"model_type": "falcon_h1", "hidden_act": "silu", "mamba_norm_before_gate": False},
    derived=derived,
    table=table,
)
