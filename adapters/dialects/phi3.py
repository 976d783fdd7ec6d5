"""Phi-3 and Phi-4 in GGUF: q, k and v in one tensor, gate and up in another, LongRoPE's factors in two.

Names: gguf-py, `tensor_mapping.py`; hyperparameters: `Phi3MiniModel` of llama.cpp's `convert_hf_to_gguf.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bringup.adapters.algebra.expr import S
from bringup.adapters.dialects.dialect import DECODER, Dialect
from bringup.adapters.dialects.tables import add_norms, without_layers
from bringup.adapters.planning.adapter import Adapter

if TYPE_CHECKING:
    from bringup.adapters.checkpoints.gguf_config import Hyperparameters
    from bringup.graphs.phi3 import Phi3Config


def table(config: Phi3Config) -> Adapter:
    h, g, d, f = config.num_heads, config.num_kv_heads, config.head_dim, config.ffn
    gguf = without_layers(config)
    add_norms(gguf)
    gguf["model.layers.{L}.self_attn.o_proj.weight"] = S("blk.{L}.attn_output.weight")
    gguf["model.layers.{L}.mlp.down_proj.weight"] = S("blk.{L}.ffn_down.weight")
    qkv = S("blk.{L}.attn_qkv.weight", "out:(h d | g d | g d) m", h=h, g=g, d=d)
    for x, part in zip("qkv", qkv.split("out", h * d, g * d, g * d), strict=True):
        gguf[f"model.layers.{{L}}.self_attn.{x}_proj.weight"] = part
    gate_up = S("blk.{L}.ffn_up.weight", "out:(f | f) m")
    for x, part in zip(("gate", "up"), gate_up.split("out", f, f), strict=True):
        gguf[f"model.layers.{{L}}.mlp.{x}_proj.weight"] = part
    gguf.drop("rope_factors_{x:long|short}.weight", why="LongRoPE's factors: read with the config")
    return gguf


def derived(hyper: Hyperparameters) -> dict[str, Any]:
    """The fraction of a head's channels that is rotated, and the context before LongRoPE extended it."""
    own = hyper.values
    words: dict[str, Any] = {}
    if original := own.get("rope.scaling.original_context_length"):
        words["original_max_position_embeddings"] = original
    if rotary := own.get("rope.dimension_count"):
        share = own["attention.head_count"] / own["embedding_length"]
        words["partial_rotary_factor"] = rotary * share if type(rotary) is int else rotary
    return words


dialect = Dialect(
    names=("phi3",),
    architecture="Phi3ForCausalLM",
    keys={**DECODER, "attention.sliding_window": "sliding_window", "rope.dimension_count": None},
    fixed={"model_type": "phi3", "hidden_act": "silu"},
    derived=derived,
    table=table,
)
