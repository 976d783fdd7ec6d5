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
from bringup.adapters.dialects.tables import LAYER, add_attention, add_mlp, attention_bias, without_layers
from bringup.adapters.planning.adapter import Adapter

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
    gguf = without_layers(config)
    gguf[LAYER + "input_layernorm.weight"] = S("blk.{L}.attn_norm.weight")
    gguf[LAYER + "post_attention_layernorm.weight"] = S("blk.{L}.ffn_norm")  # without a suffix in these files
    add_attention(gguf)
    add_mlp(gguf)
    add_state_space(gguf, config.mamba)
    return gguf


def derived(hyper: Hyperparameters) -> dict[str, Any]:
    """What the tensors of the first layer show."""
    return {
        **attention_bias(hyper),
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
