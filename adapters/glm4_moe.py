"""GLM-4.5 as published: one tensor for each matrix of each expert; layers after the last belong to a draft model."""

from __future__ import annotations

from collections.abc import Mapping

from bringup.adapters.algebra.expr import S, stack
from bringup.adapters.planning.adapter import Adapter, tied
from bringup.adapters.planning.drops import drop_rope_tables
from bringup.graphs.glm4_moe import Glm4MoeConfig


def adapter(config: Glm4MoeConfig) -> Adapter:
    glm = Adapter("glm4_moe", defaults=("out in", "vocab m"), prefix="model.")
    glm["model.{n:embed_tokens|norm}.weight"] = S("{n}.weight")
    glm["model.layers.{L}.{n:input_layernorm|post_attention_layernorm}.weight"] = S("layers.{L}.{n}.weight")
    glm["model.layers.{L}.self_attn.{x:q|k|v|o}_proj.{p:weight|bias}"] = S("layers.{L}.self_attn.{x}_proj.{p}")
    glm["model.layers.{L}.self_attn.{x:q|k}_norm.weight"] = S("layers.{L}.self_attn.{x}_norm.weight")
    glm["model.layers.{L}.mlp.{x:gate|up|down}_proj.weight"] = S("layers.{L}.mlp.{x}_proj.weight")
    glm["model.layers.{L}.mlp.gate.{p:weight|e_score_correction_bias}"] = S("layers.{L}.mlp.gate.{p}")
    for x, axes in (("gate", "f m"), ("up", "f m"), ("down", "m f")):
        expert = S(f"layers.{{L}}.mlp.experts.{{E}}.{x}_proj.weight", axes)
        glm[f"model.layers.{{L}}.mlp.experts.{x}_proj"] = stack(expert, over="E", n=config.routing.experts)
        shared = f"layers.{{L}}.mlp.shared_experts.{x}_proj.weight"
        glm[f"model.{shared}"] = S(shared)
    glm["lm_head.weight"] = tied(S("lm_head.weight"), S("embed_tokens.weight", "vocab m"), when=config.tied_head)
    drop_rope_tables(glm)

    layers = len(config.windows)

    def of_draft(variables: Mapping[str, str]) -> bool:
        return layers <= int(variables["L"]) < layers + config.draft_layers

    why = "the draft layer that predicts one token further"
    glm.drop("layers.{L}.{rest:**}", why=why, when=of_draft, requires="layers.{L}.eh_proj.weight")
    return glm
