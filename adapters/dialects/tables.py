"""Rules that most families' tables share: llama.cpp names a part of a model alike, whatever the architecture.

Names: gguf-py, `tensor_mapping.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from bringup.adapters.algebra.expr import Expr, S
from bringup.adapters.planning.adapter import Adapter, either, tied

if TYPE_CHECKING:
    from bringup.adapters.checkpoints.gguf_config import Hyperparameters
    from bringup.graphs.decoder import DecoderConfig

LAYER = "model.layers.{L}."


def without_layers(config: DecoderConfig, norm: Expr | None = None) -> Adapter:
    """A table with the rules of the embedding, the head and the last norm, which is `norm` if it has another form."""
    gguf = Adapter(f"{config.family} in GGUF", defaults=("out in", "vocab m"))
    gguf["model.embed_tokens.weight"] = S("token_embd.weight")
    gguf["model.norm.weight"] = norm or S("output_norm.weight")
    gguf["lm_head.weight"] = tied(S("output.weight"), S("token_embd.weight", "vocab m"), when=config.tied_head)
    return gguf


def add_norms(gguf: Adapter) -> None:
    """Adds the rules of the norms before attention and MLP."""
    gguf[LAYER + "input_layernorm.weight"] = S("blk.{L}.attn_norm.weight")
    gguf[LAYER + "post_attention_layernorm.weight"] = S("blk.{L}.ffn_norm.weight")


def add_attention(gguf: Adapter) -> None:
    """Adds the rules of attention whose queries and keys are stored as in transformers, maybe with norms."""
    gguf[LAYER + "self_attn.{x:q|k|v}_proj.{p:weight|bias}"] = S("blk.{L}.attn_{x}.{p}")
    gguf[LAYER + "self_attn.o_proj.{p:weight|bias}"] = S("blk.{L}.attn_output.{p}")
    gguf[LAYER + "self_attn.{x:q|k}_norm.weight"] = S("blk.{L}.attn_{x}_norm.weight")


def add_mlp(gguf: Adapter) -> None:
    """Adds the rules of a gated MLP."""
    gguf[LAYER + "mlp.{x:gate|up|down}_proj.{p:weight|bias}"] = S("blk.{L}.ffn_{x}.{p}")


def add_experts(gguf: Adapter, *, fused: bool = False) -> None:
    """Adds the rules of a router, and of experts that have one tensor for each matrix. `fused`: files may also have one
    tensor for gate and up, one after the other."""
    gguf[LAYER + "mlp.gate.weight"] = S("blk.{L}.ffn_gate_inp.weight")
    pair = S("blk.{L}.ffn_gate_up_exps.weight", "e (t f) m", t=2).mv("e (t f) m -> t e f m", t=2)
    whole = {"gate": pair.at("t", 0), "up": pair.at("t", 1)} if fused else {}
    for x, axes in (("gate", "e f m"), ("up", "e f m"), ("down", "e m f")):
        each = S(f"blk.{{L}}.ffn_{x}_exps.weight", axes)
        gguf[f"{LAYER}mlp.experts.{x}_proj"] = either(whole[x], each) if x in whole else each


def of_growth(hyper: Hyperparameters, scaling: Mapping[str, Any], *, absent: float) -> dict[str, Any]:
    """The settings of rope, `scaling` if positions are scaled, with those of the growth of queries.

    Its factor is `attention.temperature_scale`, `absent` if a file has none. Its period is the original context of
    rope, or llama.cpp's default for that, the context's length (`load_hparams`).
    """
    plain = {"rope_type": "default", "original_max_position_embeddings": hyper.values.get("context_length")}
    return {**(scaling or plain), "llama_4_scaling_beta": hyper.values.get("attention.temperature_scale", absent)}


def attention_bias(hyper: Hyperparameters) -> dict[str, Any]:
    """The config key that no hyperparameter states: whether a file has biases of attention."""
    return {"attention_bias": "blk.0.attn_q.bias" in hyper.tensors}
