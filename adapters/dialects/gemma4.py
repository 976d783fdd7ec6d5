"""Gemma 4 in GGUF: layers with a window and layers with full attention have other heads, and one tensor has the
divisors of rope's frequencies in layers with full attention.

Names: gguf-py, `tensor_mapping.py`; hyperparameters and values: `Gemma4Model` of llama.cpp's `conversion/gemma.py`.
What llama.cpp requires, and its default theta of layers with a window: `src/models/gemma4.cpp`, `llama-hparams.h`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, cast

from bringup.adapters.algebra.expr import S
from bringup.adapters.checkpoints.gguf_rope import FREQS, PREFIX
from bringup.adapters.dialects import gemma2
from bringup.adapters.dialects.dialect import DECODER, Dialect, rotary_fraction
from bringup.adapters.dialects.tables import LAYER, add_attention, add_mlp, attention_bias, without_layers
from bringup.adapters.gemma4 import add_inputs, drop_shared
from bringup.adapters.planning.adapter import Adapter, either

if TYPE_CHECKING:
    from bringup.adapters.checkpoints.gguf_config import Hyperparameters
    from bringup.graphs.gemma4 import Gemma4Config

UNROTATED = 1e29  # the converter divides the frequencies of channels that do not rotate by 1e30
KEY_HEADS, WINDOWS, SHARED = "attention.head_count_kv", "attention.sliding_window_pattern", "attention.shared_kv_layers"
# `derived` replaces the values of keys with other forms, and reads those for None.
KEYS: dict[str, str | None] = {
    **DECODER,
    "attention.key_length": "global_head_dim",
    "attention.key_length_swa": "head_dim",
    SHARED: "num_kv_shared_layers",
    "attention.sliding_window": "sliding_window",
    WINDOWS: "layer_types",
    "embedding_length_per_layer_input": "hidden_size_per_layer_input",
    "expert_count": None,
    "expert_feed_forward_length": None,
    "expert_used_count": None,
    "feed_forward_length": None,
    "final_logit_softcapping": "final_logit_softcapping",
    "rope.freq_base": None,
    "rope.freq_base_swa": None,
}
# llama.cpp's names of what only some models have, by ours.
OF_EXPERTS = {
    "post_feedforward_layernorm_1.weight": "post_ffw_norm_1.weight",
    "pre_feedforward_layernorm_2.weight": "pre_ffw_norm_2.weight",
    "post_feedforward_layernorm_2.weight": "post_ffw_norm_2.weight",
    "router.proj.weight": "ffn_gate_inp.weight",
    "router.scaled_norm.weight": "ffn_gate_inp.scale",
    "router.per_expert_scale": "ffn_down_exps.scale",
}
OF_INPUTS = {
    "per_layer_input_gate": "inp_gate",
    "per_layer_projection": "proj",
    "post_per_layer_input_norm": "post_norm",
}


def table(config: Gemma4Config) -> Adapter:
    gguf = without_layers(config)
    for name, stored in gemma2.NORMS.items():
        gguf[f"{LAYER}{name}.weight"] = S(f"blk.{{L}}.{stored}.weight")
    add_attention(gguf)
    add_mlp(gguf)
    gguf[LAYER + "layer_scalar"] = S("blk.{L}.layer_output_scale.weight", "one")
    if config.num_experts:
        _add_experts(gguf)
    if config.input_width:
        for name, stored in OF_INPUTS.items():
            gguf[f"{LAYER}{name}.weight"] = S(f"blk.{{L}}.{stored}.weight")
        add_inputs(gguf, config, "per_layer_token_embd", "per_layer_model_proj", "per_layer_proj_norm")
    drop_shared(gguf, config, "blk.{L}.{x:attn_k|attn_v|attn_k_norm}.{rest:**}")
    gguf.drop(FREQS, why="divisors of frequencies: checked when the config is read from the metadata")
    return gguf


def _add_experts(gguf: Adapter) -> None:
    """Gate and up of all experts are one tensor, or two in files of checkpoints with a matrix for each expert."""
    for name, stored in OF_EXPERTS.items():
        gguf[LAYER + name] = S(f"blk.{{L}}.{stored}")
    pair = S("blk.{L}.ffn_gate_up_exps.weight", "e (t f) m", t=2).mv("e (t f) m -> t e f m", t=2)
    for index, x in enumerate(("gate", "up")):
        gguf[f"{LAYER}experts.{x}_proj"] = either(S(f"blk.{{L}}.ffn_{x}_exps.weight", "e f m"), pair.at("t", index))
    gguf[LAYER + "experts.down_proj"] = S("blk.{L}.ffn_down_exps.weight", "e m f")


def derived(hyper: Hyperparameters) -> dict[str, Any]:
    """The keys of layers and of rope. What llama.cpp requires and a file lacks is null, so that it is an error."""
    own = hyper.values
    inputs = hyper.tensors.get("per_layer_token_embd.weight")
    theta, theta_of_windows = (own.get(f"rope.freq_base{end}") or 10000.0 for end in ("", "_swa"))
    sliding = {"rope_type": "default", "rope_theta": theta_of_windows}
    full = {**_divisors(hyper), "rope_theta": theta}
    return {
        "head_dim": own.get("attention.key_length_swa"),
        "sliding_window": own.get("attention.sliding_window"),
        "hidden_size_per_layer_input": own.get("embedding_length_per_layer_input"),
        "enable_moe_block": bool(own.get("expert_count")),
        "num_experts": own.get("expert_count"),
        "top_k_experts": own.get("expert_used_count"),
        "moe_intermediate_size": own.get("expert_feed_forward_length"),
        "rope_parameters": {"full_attention": full, "sliding_attention": sliding},
        "rope_scaling": None,
        **({"vocab_size_per_layer_input": inputs.shape_in(2)[0]} if inputs else {}),
        **attention_bias(hyper),
        **_layers(hyper),
        **_widths(hyper),
        **{f"{hyper.architecture}.{key}": value for key, value in own.items() if key.startswith(PREFIX)},
    }


def _divisors(hyper: Hyperparameters) -> dict[str, Any]:
    """The type of rope that divides the frequencies of the first pairs of channels by 1, and rotates no other pair."""
    stored, width = hyper.numbers(FREQS) or (), hyper.values.get("attention.key_length")
    rotated = sum(value == 1.0 for value in stored)
    others = stored[rotated:]
    if not rotated or 2 * len(stored) != width or not all(value >= UNROTATED for value in others):
        return {"rope_type": f"the factors in {FREQS}"}  # no graph has this type: an error
    part = rotary_fraction({"rope.dimension_count": 2 * rotated}, width)
    return {"rope_type": "proportional", "partial_rotary_factor": part}


def _layers(hyper: Hyperparameters) -> dict[str, Any]:
    """The type of each layer, the key heads of each type, and whether keys are values in layers with full attention.

    A file has one number of key heads for all layers, or one for each.
    """
    own, blocks = hyper.values, hyper.values["block_count"]
    stated, heads = own.get(WINDOWS), own.get(KEY_HEADS, own["attention.head_count"])
    if not isinstance(stated, list):
        return {"layer_types": [], "num_key_value_heads": heads}  # llama.cpp requires the types: an error
    windows = cast("list[object]", stated)
    types = ["sliding_attention" if window else "full_attention" for window in windows]
    full = [index for index, window in enumerate(windows[:blocks]) if not window]
    present = [{x for x in "kv" if f"blk.{index}.attn_{x}.weight" in hyper.tensors} for index in full]
    found: dict[str, Any] = {"layer_types": types, "attention_k_eq_v": {"k"} in present[: _with_keys(full, hyper)]}
    if not isinstance(heads, list):
        return found | {"num_key_value_heads": heads}
    counts = cast("list[object]", heads)
    of_full = [count for index, count in enumerate(counts) if index in full]
    others = [count for index, count in enumerate(counts) if index not in full] or of_full
    if len(counts) != blocks or any(count != each[0] for each in (of_full, others) for count in each):
        return found | {"num_key_value_heads": counts}
    return found | {"num_key_value_heads": others[0], "num_global_key_value_heads": (of_full or [None])[0]}


def _with_keys(layers: Iterable[int], hyper: Hyperparameters) -> int:
    """How many of these layers have keys and values; the others, which come last, share those of an earlier one."""
    shared = hyper.values.get(SHARED) or 0
    first = hyper.values["block_count"] - (shared if type(shared) is int else 0)
    return sum(index < first for index in layers)


def _widths(hyper: Hyperparameters) -> dict[str, Any]:
    """The width of the MLP; that of layers that share keys and values may be twice as large."""
    own = hyper.values
    stated = own.get("feed_forward_length")
    widths = cast("list[object]", stated if isinstance(stated, list) else [])
    if not widths or len(widths) != own["block_count"]:
        return {"intermediate_size": stated}
    width, count = widths[0], _with_keys(range(len(widths)), hyper)
    wide = widths[-1] != width
    last = 2 * width if wide and isinstance(width, int) else width
    fits = all(each == (width if index < count else last) for index, each in enumerate(widths))
    return {"intermediate_size": width if fits else widths, "use_double_wide_mlp": wide}


dialect = Dialect(
    names=("gemma4",),
    architecture="Gemma4ForCausalLM",
    keys=KEYS,
    fixed={"model_type": "gemma4_text", "hidden_activation": "gelu_pytorch_tanh"},
    derived=derived,
    table=table,
)
