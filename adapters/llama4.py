"""Llama 4 as published: all experts in one tensor, gate and up concatenated; a vision model next to the text model."""

from __future__ import annotations

from bringup.adapters.algebra.expr import S, stack
from bringup.adapters.planning.adapter import Adapter, either, tied
from bringup.adapters.planning.drops import drop_rope_tables
from bringup.graphs.llama4 import Llama4Config

PLACES = ("language_model.model.", "language_model.")
LAYER = "layers.{L}."
MLP = LAYER + "feed_forward."


def adapter(config: Llama4Config) -> Adapter:
    """Published files have `language_model.model.` and `language_model.lm_head`, those of the text model alone
    `model.` and `lm_head`.

    Files that llm-compressor writes have one tensor for each matrix of each expert.
    """
    llama = Adapter("llama4", defaults=("out in", "vocab m"), prefix="model.", wrappers=PLACES)
    llama["model.{n:embed_tokens|norm}.weight"] = S("{n}.weight")
    llama[f"model.{LAYER}{{n:input_layernorm|post_attention_layernorm}}.weight"] = S(LAYER + "{n}.weight")
    llama[f"model.{LAYER}self_attn.{{x:q|k|v|o}}_proj.{{p:weight|bias}}"] = S(LAYER + "self_attn.{x}_proj.{p}")
    llama[f"model.{LAYER}mlp.{{x:gate|up|down}}_proj.weight"] = S(MLP + "{x}_proj.weight")
    llama[f"model.{LAYER}mlp.gate.weight"] = S(MLP + "router.weight")
    llama[f"model.{LAYER}mlp.shared_expert.{{x:gate|up|down}}_proj.weight"] = S(MLP + "shared_expert.{x}_proj.weight")
    pair = S(MLP + "experts.gate_up_proj", "e m (t f)", t=2).mv("e m (t f) -> t e m f", t=2)
    fused = (pair.at("t", 0), pair.at("t", 1), S(MLP + "experts.down_proj", "e f m"))
    for whole, x, axes in zip(fused, ("gate", "up", "down"), ("f m", "f m", "m f"), strict=True):
        each = stack(S(f"{MLP}experts.{{E}}.{x}_proj.weight", axes), over="E", n=config.num_experts)
        llama[f"model.{LAYER}mlp.experts.{x}_proj"] = either(whole, each)
    llama["lm_head.weight"] = tied(S("lm_head.weight"), S("embed_tokens.weight", "vocab m"), when=config.tied_head)
    drop_rope_tables(llama)
    llama.drop("vision_model.{rest:**}", why="it sees images; this graph is the language model, which reads text")
    llama.drop("multi_modal_projector.{rest:**}", why="it projects the features of the vision model to tokens")
    return llama
