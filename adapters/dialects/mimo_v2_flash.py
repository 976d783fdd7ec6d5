"""MiMo-V2-Flash in GGUF: a number of key heads and a type for each layer; the last layers belong to a draft model.

A window includes the query's own token (`llama-hparams.h`, `is_masked_swa`). The converter writes `sliding_window` of
the published config, 128, so llama.cpp attends to one token less than transformers.
Names: gguf-py, `tensor_mapping.py`; hyperparameters: `MimoV2Model` of llama.cpp's `conversion/mimo.py`, and what
llama.cpp reads: `src/models/mimo2.cpp`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from bringup.adapters.algebra.expr import S
from bringup.adapters.dialects.dialect import DECODER, Dialect, rotary_fraction
from bringup.adapters.dialects.routing import ROUTING, drop_draft, routing
from bringup.adapters.dialects.tables import (
    LAYER,
    add_attention,
    add_experts,
    add_mlp,
    add_norms,
    attention_bias,
    without_layers,
)
from bringup.adapters.planning.adapter import Adapter

if TYPE_CHECKING:
    from bringup.adapters.checkpoints.gguf_config import Hyperparameters
    from bringup.graphs.mimo_v2_flash import MiMoV2FlashConfig

KEY_HEADS, WINDOWS = "attention.head_count_kv", "attention.sliding_window_pattern"


def table(config: MiMoV2FlashConfig) -> Adapter:
    gguf = without_layers(config)
    add_norms(gguf)
    add_attention(gguf)
    add_mlp(gguf)
    add_experts(gguf)
    gguf[LAYER + "self_attn.sinks"] = S("blk.{L}.attn_sinks.weight")
    gguf[LAYER + "mlp.gate.e_score_correction_bias"] = S("blk.{L}.exp_probs_b.bias")
    drop_draft(gguf, len(config.windows))
    return gguf


def derived(hyper: Hyperparameters) -> dict[str, Any]:
    """The keys of layers and of rope; llama.cpp normalises the weights of experts in every file."""
    own, shared = hyper.values, routing(hyper)
    layers = shared["num_hidden_layers"]
    width = own.get("attention.key_length") or own["embedding_length"] // own["attention.head_count"]
    rope = {"rope_type": "default", "partial_rotary_factor": rotary_fraction(own, width)}
    theta, theta_of_windows = (own.get(f"rope.freq_base{end}") or 10000.0 for end in ("", "_swa"))
    return {
        "n_group": shared["n_group"],
        "topk_group": shared["topk_group"],
        "routed_scaling_factor": shared["routed_scaling_factor"],
        "num_hidden_layers": layers,
        "v_head_dim": own.get("attention.value_length") or width,
        "attention_value_scale": own.get("attention.value_scale", 1.0),
        "rope_parameters": {
            "full_attention": {**rope, "rope_theta": theta},
            "sliding_attention": {**rope, "rope_theta": theta_of_windows},
        },
        **attention_bias(hyper),
        **(_layers(hyper, layers) if type(layers) is int else {}),
    }


def _layers(hyper: Hyperparameters, layers: int) -> dict[str, Any]:
    """The types of layers, and the key heads of each type; a file has one number of them for all layers, or a list.

    A list that does not describe all layers, or layers of a type that differ, is an error: the config gets the list.
    """
    own = hyper.values
    stated, heads = own.get(WINDOWS), own.get(KEY_HEADS, own["attention.head_count"])
    windows = cast("list[object]", stated)[:layers] if isinstance(stated, list) else []  # llama.cpp requires a list
    found: dict[str, Any] = {"layer_types": ["sliding_attention" if each else "full_attention" for each in windows]}
    if len(windows) < layers:
        return found
    counts = cast("list[object]", heads)[:layers] if isinstance(heads, list) else [heads] * layers
    if len(counts) < layers:
        return found | {"num_key_value_heads": counts}
    sparse = (f"blk.{index}.ffn_gate_inp.weight" in hyper.tensors for index in range(layers))
    found["mlp_layer_types"] = ["sparse" if experts else "dense" for experts in sparse]
    local, full = (
        _alike([n for n, window in zip(counts, windows, strict=True) if bool(window) is of_windows])
        for of_windows in (True, False)
    )
    if full is None:
        full = local // 2 if type(local) is int else local
    return found | {"num_key_value_heads": full} | ({} if local is None else {"swa_num_key_value_heads": local})


def _alike(counts: Sequence[object]) -> object:
    """The number that all layers have; the list of their numbers if they differ; None without layers."""
    return counts[0] if counts and all(count == counts[0] for count in counts) else list(counts) or None


dialect = Dialect(
    names=("mimo2",),
    architecture="MiMoV2FlashForCausalLM",
    keys={
        **DECODER,
        **ROUTING,
        KEY_HEADS: None,
        WINDOWS: None,
        "attention.sliding_window": "sliding_window",
        "attention.value_length": "v_head_dim",
        "attention.value_scale": "attention_value_scale",
        "expert_shared_count": None,
        "rope.dimension_count": None,
        "rope.freq_base": None,
        "rope.freq_base_swa": None,
    },
    fixed={"model_type": "mimo_v2_flash", "hidden_act": "silu", "norm_topk_prob": True},
    derived=derived,
    table=table,
)
