"""Llama, Mistral, SmolLM2 and InternLM 2 in GGUF: rows of q and k are in rope pairs, in transformers in halves.

llama.cpp's converter permutes them (`convert_hf_to_gguf.py`, `LlamaModel.permute`); the `mv` rules invert that.
InternLM 2's q, k and v, one matrix in its checkpoints, are separate in its files: they are Llama's except for the name,
and so are those of Mistral Small 3 since December 2025.
Names: gguf-py, `tensor_mapping.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bringup.adapters.algebra.expr import Expr, S
from bringup.adapters.dialects.dialect import DECODER, Dialect
from bringup.adapters.dialects.tables import LAYER, add_mlp, add_norms, attention_bias, without_layers
from bringup.adapters.planning.adapter import Adapter

if TYPE_CHECKING:
    from bringup.adapters.checkpoints.gguf_config import Hyperparameters
    from bringup.graphs.decoder import DecoderConfig

MISTRAL3 = "mistral3"  # the architecture of Mistral Small 3 and Ministral 3


def table(config: DecoderConfig) -> Adapter:
    gguf = without_layers(config)
    add_norms(gguf)
    for x in "qk":
        for part, rows in in_halves(x, config.head_dim).items():
            gguf[f"{LAYER}self_attn.{x}_proj.{part}"] = rows
    gguf[LAYER + "self_attn.v_proj.{p:weight|bias}"] = S("blk.{L}.attn_v.{p}")
    gguf[LAYER + "self_attn.o_proj.{p:weight|bias}"] = S("blk.{L}.attn_output.{p}")
    add_mlp(gguf)
    gguf.drop("rope_freqs.weight", why="factors of llama3 rope: checked when the config is read from the metadata")
    return gguf


def in_halves(x: str, head_dim: int) -> dict[str, Expr]:
    """The weight and the bias of q or k, whose rows are in rope pairs in files."""
    half, heads = head_dim // 2, {"q": "h", "k": "g"}[x]
    rows, halves = f"({heads} pair two)", f"({heads} d:(two pair))"
    weight = S(f"blk.{{L}}.attn_{x}.weight", f"{rows} m", pair=half, two=2)
    bias = S(f"blk.{{L}}.attn_{x}.bias", rows, pair=half, two=2)
    return {
        "weight": weight.mv(f"{rows} m -> {halves} m", pair=half, two=2),
        "bias": bias.mv(f"{rows} -> {halves}", pair=half, two=2),
    }


def derived(hyper: Hyperparameters) -> dict[str, Any]:
    return {**attention_bias(hyper), "mlp_bias": "blk.0.ffn_gate.bias" in hyper.tensors}


def is_ministral(hyper: Hyperparameters) -> bool:
    """Whether a file of architecture `mistral3` has settings of Ministral 3, which those of Mistral Small 3 lack."""
    settings = {"attention.temperature_scale", "rope.scaling.yarn_log_multiplier"}
    return hyper.architecture == MISTRAL3 and not settings.isdisjoint(hyper.values)


dialect = Dialect(
    names=("llama", "internlm2", MISTRAL3),
    architecture="LlamaForCausalLM",
    keys={**DECODER, "attention.sliding_window": "sliding_window", "expert_count": None, "expert_used_count": None},
    fixed={"model_type": "llama", "hidden_act": "silu"},
    derived=derived,
    table=table,
    when=lambda hyper: not hyper.values.get("expert_count") and not is_ministral(hyper),
)
