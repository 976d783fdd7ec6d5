"""Granite 4 in GGUF: a layer with no key heads has a state space.

Names: gguf-py, `tensor_mapping.py`; hyperparameters and values: llama.cpp's converter, `GraniteHybridModel` and
`Mamba2Model` (`conversion/granite.py`, `conversion/mamba.py`). Rows of q and k are in rope pairs, as in `llama`.
Models without Mamba 2 layers have the architectures of Granite 3, whose files state no width of a shared MLP, and use
rope by default (`src/models/granite.cpp`). A `granitehybrid` file with rope is Bamba's
(`src/models/granite-hybrid.cpp`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bringup.adapters.algebra.expr import S
from bringup.adapters.algebra.values import log, scale
from bringup.adapters.dialects import llama
from bringup.adapters.dialects.dialect import DECODER, Dialect
from bringup.adapters.dialects.lfm2 import KEY_HEADS, by_key_heads
from bringup.adapters.dialects.tables import add_experts
from bringup.adapters.mamba import CHANNELS, MIXER, add_projections
from bringup.adapters.planning.adapter import Adapter

if TYPE_CHECKING:
    from bringup.adapters.checkpoints.gguf_config import Hyperparameters
    from bringup.graphs.config.mamba import MambaConfig
    from bringup.graphs.granitemoehybrid import GraniteMoeHybridConfig

HYBRID, SHARED_WIDTH, WITH_ROPE = "granitehybrid", "expert_shared_feed_forward_length", "rope.scaling.finetuned"
# Keys for None are read by `derived` and `of_granite_4`, or do not affect the result.
KEYS: dict[str, str | None] = {
    **DECODER,
    KEY_HEADS: None,
    "attention.scale": None,
    "embedding_scale": "embedding_multiplier",
    "expert_count": None,
    SHARED_WIDTH: "shared_intermediate_size",
    "expert_used_count": None,
    "logit_scale": "logits_scaling",
    "residual_scale": "residual_multiplier",
    "rope.dimension_count": None,
    WITH_ROPE: None,
    "ssm.conv_kernel": "mamba_d_conv",
    "ssm.group_count": "mamba_n_groups",
    "ssm.inner_size": None,
    "ssm.state_size": "mamba_d_state",
    "ssm.time_step_rank": "mamba_n_heads",
}


def add_state_space(gguf: Adapter, config: MambaConfig) -> None:
    """Adds the rules of the mixers of Mamba 2."""
    add_projections(gguf, config, "blk.{L}.ssm_in")
    gguf[f"{MIXER}conv1d.weight"] = S("blk.{L}.ssm_conv1d.weight", f"{CHANNELS} tap")
    gguf[f"{MIXER}conv1d.bias"] = S("blk.{L}.ssm_conv1d.bias")
    gguf[f"{MIXER}dt_bias"] = S("blk.{L}.ssm_dt.bias")
    gguf[f"{MIXER}A_log"] = log(scale(S("blk.{L}.ssm_a", "h one", one=1).at("one", 0), -1))
    gguf[f"{MIXER}D"] = S("blk.{L}.ssm_d", "h one", one=1).at("one", 0)
    parts: dict[str, Any] = {
        "g": config.groups,
        "x": config.heads * config.head_dim // config.groups,
    }
    gguf[f"{MIXER}gated_norm.weight"] = S("blk.{L}.ssm_norm.weight", "g x", **parts).mv("g x -> m:(g x)", **parts)
    gguf[f"{MIXER}out_proj.{{p:weight|bias}}"] = S("blk.{L}.ssm_out.{p}")


def table(config: GraniteMoeHybridConfig) -> Adapter:
    gguf = llama.table(config)
    add_state_space(gguf, config.mamba)
    add_experts(gguf)
    gguf["model.layers.{L}.mlp.shared_mlp.{x:gate|up|down}_proj.weight"] = S("blk.{L}.ffn_{x}_shexp.weight")
    return gguf


def derived(hyper: Hyperparameters) -> dict[str, Any]:
    """Keys that llama.cpp writes only for models that have them, and those that the shapes of heads determine."""
    own, layers = hyper.values, by_key_heads(hyper, "mamba")
    inner, heads, hidden = own.get("ssm.inner_size"), own.get("ssm.time_step_rank"), own["embedding_length"]
    sizes: dict[str, Any] = {"mamba_d_head": inner}
    if "mamba" not in layers.get("layer_types", ()):
        sizes = {"mamba_n_heads": 1, "mamba_n_groups": 1, "mamba_d_head": "auto"}  # of no layer
    elif isinstance(inner, int) and isinstance(heads, int) and heads > 0:
        sizes = {"mamba_d_head": inner // heads, "mamba_expand": max(1, inner // hidden)}
    ends = {name.partition(".")[2].partition(".")[2] for name in hyper.tensors if name.startswith("blk.")}
    return {
        **layers,
        **sizes,
        "position_embedding_type": "nope" if own.get(WITH_ROPE) is False else "rope",
        "attention_multiplier": own.get("attention.scale") or (hidden // own["attention.head_count"]) ** -0.5,
        "num_local_experts": own.get("expert_count", 0),
        "num_experts_per_tok": own.get("expert_used_count", 0),
        "attention_bias": "attn_q.bias" in ends,
        "mamba_conv_bias": "ssm_conv1d.bias" in ends,
        "mamba_proj_bias": "ssm_in.bias" in ends,
    }


def of_granite_4(hyper: Hyperparameters) -> bool:
    own = hyper.values
    return own.get(WITH_ROPE) is False if hyper.architecture == HYBRID else bool(own.get(SHARED_WIDTH))


dialect = Dialect(
    names=(HYBRID, "granite", "granitemoe"),
    architecture="GraniteMoeHybridForCausalLM",
    keys=KEYS,
    fixed={"model_type": "granitemoehybrid", "hidden_act": "silu"},
    derived=derived,
    table=table,
    when=of_granite_4,
)
