"""LFM2-MoE as published: LFM2's names, and one tensor for each matrix of each expert."""

from __future__ import annotations

from bringup.adapters.algebra.expr import S, stack
from bringup.adapters.lfm2 import MLP, published
from bringup.adapters.planning.adapter import Adapter
from bringup.graphs.lfm2_moe import Lfm2MoeConfig


def adapter(config: Lfm2MoeConfig) -> Adapter:
    lfm2 = published("lfm2_moe", config)
    lfm2["model.layers.{L}.mlp.gate.weight"] = S("layers.{L}.feed_forward.gate.weight")
    lfm2["model.layers.{L}.mlp.gate.e_score_correction_bias"] = S("layers.{L}.feed_forward.expert_bias")
    for ours, theirs in MLP.items():
        expert = S(f"layers.{{L}}.feed_forward.experts.{{E}}.{theirs}.weight", "m f" if ours == "down" else "f m")
        lfm2[f"model.layers.{{L}}.mlp.experts.{ours}_proj"] = stack(expert, over="E", n=config.routing.experts)
    return lfm2
