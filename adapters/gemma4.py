"""Gemma 4 as published: the text model's tensors under a longer prefix, next to those of images and audio.

Gate and up of all experts are one tensor. So are the embeddings of tokens for all layers, and their projections.
In quantised files, each expert is a module of three matrices; some have `moe.` in their names (vLLM, gemma4.py).
"""

from __future__ import annotations

from collections.abc import Mapping

from bringup.adapters.algebra.expr import S, stack
from bringup.adapters.planning.adapter import Adapter, either, tied
from bringup.adapters.planning.drops import drop_rope_tables
from bringup.graphs.gemma4 import Gemma4Config

PLACES = ("model.language_model.", "language_model.model.", "language_model.")
LAYER = "layers.{L}."


def adapter(config: Gemma4Config) -> Adapter:
    """Published files have `model.language_model.`, those of the text model alone `model.`."""
    gemma4 = Adapter("gemma4", defaults=("out in", "vocab m"), prefix="model.", wrappers=PLACES)
    gemma4["model.{n:embed_tokens|norm}.weight"] = S("{n}.weight")
    norms = "input|post_attention|pre_feedforward|post_feedforward"
    gemma4[f"model.{LAYER}{{n:{norms}}}_layernorm.weight"] = S(LAYER + "{n}_layernorm.weight")
    gemma4[f"model.{LAYER}layer_scalar"] = S(LAYER + "layer_scalar", "one")
    gemma4[f"model.{LAYER}self_attn.{{x:q|k|v|o}}_proj.{{p:weight|bias}}"] = S(LAYER + "self_attn.{x}_proj.{p}")
    gemma4[f"model.{LAYER}self_attn.{{x:q|k}}_norm.weight"] = S(LAYER + "self_attn.{x}_norm.weight")
    gemma4[f"model.{LAYER}mlp.{{x:gate|up|down}}_proj.weight"] = S(LAYER + "mlp.{x}_proj.weight")
    gemma4["lm_head.weight"] = tied(S("lm_head.weight"), S("embed_tokens.weight", "vocab m"), when=config.tied_head)
    if config.num_experts:
        _add_experts(gemma4, config.num_experts)
    if config.input_width:
        parts = "per_layer_input_gate|per_layer_projection|post_per_layer_input_norm"
        gemma4[f"model.{LAYER}{{n:{parts}}}.weight"] = S(LAYER + "{n}.weight")
        add_inputs(gemma4, config, "embed_tokens_per_layer", "per_layer_model_projection", "per_layer_projection_norm")
    drop_shared(gemma4, config, LAYER + "self_attn.{x:k_proj|v_proj|k_norm|v_norm}.{rest:**}")
    for part in ("vision_tower", "vision_embedder", "embed_vision", "audio_tower", "embed_audio"):
        gemma4.drop(f"{part}.{{rest:**}}", why="of images or audio; this graph is the language model, which reads text")
    drop_rope_tables(gemma4, "rotary_emb", "layers.{L}.self_attn.rotary_emb")
    return gemma4


def _add_experts(gemma4: Adapter, count: int) -> None:
    names = "post_feedforward_layernorm_1|pre_feedforward_layernorm_2|post_feedforward_layernorm_2"
    gemma4[f"model.{LAYER}{{n:{names}}}.weight"] = S(LAYER + "{n}.weight")
    gemma4[f"model.{LAYER}router.scaled_norm.weight"] = S(LAYER + "router.scale")
    gemma4[f"model.{LAYER}router.proj.weight"] = S(LAYER + "router.proj.weight")
    gemma4[f"model.{LAYER}router.per_expert_scale"] = S(LAYER + "router.per_expert_scale")
    pair = S(LAYER + "experts.gate_up_proj", "e (t f) m", t=2).mv("e (t f) m -> t e f m", t=2)
    fused = (pair.at("t", 0), pair.at("t", 1), S(LAYER + "experts.down_proj", "e m f"))
    for whole, x, axes in zip(fused, ("gate", "up", "down"), ("f m", "f m", "m f"), strict=True):
        places = (f"{LAYER}{place}experts.{{E}}.{x}_proj.weight" for place in ("", "moe."))
        modules = (stack(S(name, axes), over="E", n=count) for name in places)
        gemma4[f"model.{LAYER}experts.{x}_proj"] = either(*modules, whole)


def add_inputs(gemma4: Adapter, config: Gemma4Config, tokens: str, projections: str, norm: str) -> None:
    """Adds the rules of the inputs of layers, from the tensors of these names that all layers share."""
    layers, width = len(config.windows), config.input_width
    table = S(f"{tokens}.weight", "token (l p)", l=layers, p=width).mv("token (l p) -> l token p", l=layers)
    matrix = S(f"{projections}.weight", "(l p) m", l=layers, p=width).mv("(l p) m -> l p m", l=layers)
    for layer in range(layers):
        part = f"model.layers.{layer}.input."
        gemma4[f"{part}embed_tokens.weight"] = table.at("l", layer)
        gemma4[f"{part}projection.weight"] = matrix.at("l", layer)
    gemma4[f"model.{LAYER}input.norm.weight"] = S(f"{norm}.weight")


def drop_shared(gemma4: Adapter, config: Gemma4Config, pattern: str) -> None:
    """Drops keys and values, with their norms, of the layers {L} that share those of an earlier one."""
    own = len(config.windows) - config.shared_layers

    def shares(found: Mapping[str, str]) -> bool:
        return int(found["L"]) >= own

    gemma4.drop(pattern, why="the layer attends to the keys and values of an earlier one", when=shares)
