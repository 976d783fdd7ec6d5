"""gpt-oss as published: all experts in one tensor, the columns of gate and up interleaved."""

from __future__ import annotations

from bringup.adapters.algebra.expr import Expr, S
from bringup.adapters.planning.adapter import Adapter, tied
from bringup.adapters.planning.drops import drop_rope_tables
from bringup.graphs.gpt_oss import GptOssConfig


def adapter(config: GptOssConfig) -> Adapter:
    oss = Adapter("gpt_oss", defaults=("out in", "vocab m"), prefix="model.")
    oss["model.{n:embed_tokens|norm}.weight"] = S("{n}.weight")
    oss["model.layers.{L}.{n:input_layernorm|post_attention_layernorm}.weight"] = S("layers.{L}.{n}.weight")
    oss["model.layers.{L}.self_attn.{x:q|k|v|o}_proj.{p:weight|bias}"] = S("layers.{L}.self_attn.{x}_proj.{p}")
    oss["model.layers.{L}.self_attn.sinks"] = S("layers.{L}.self_attn.sinks")
    oss["model.layers.{L}.mlp.router.{p:weight|bias}"] = S("layers.{L}.mlp.router.{p}")
    oss["lm_head.weight"] = tied(S("lm_head.weight"), S("embed_tokens.weight", "vocab m"), when=config.tied_head)
    drop_rope_tables(oss)

    experts = "layers.{L}.mlp.experts."
    both = S(experts + "gate_up_proj", "e m (f two)", two=2).mv("e m column -> e column m")
    gate, up, down = _half(both, 0), _half(both, 1), S(experts + "down_proj", "e f m")
    biases = S(experts + "gate_up_proj_bias", "e (f two)", two=2).mv("e (f two) -> two e f", two=2)
    for x, matrix, bias in (
        ("gate", gate, biases.at("two", 0)),
        ("up", up, biases.at("two", 1)),
        ("down", down, S(experts + "down_proj_bias", "e m")),
    ):
        oss[f"model.{experts}{x}_proj"] = matrix
        oss[f"model.{experts}{x}_proj_bias"] = bias
    return oss


def _half(both: Expr, at: int) -> Expr:
    """The gate (0) or up (1) of a matrix with interleaved rows."""
    return both.mv("e (f two) m -> two e f m", two=2).at("two", at)
