"""Nemotron-H as published: `mixer` whatever a layer has, and one tensor for each matrix of each expert, or of all."""

from __future__ import annotations

from bringup.adapters.algebra.expr import S, stack
from bringup.adapters.mamba import add_mamba
from bringup.adapters.planning.adapter import Adapter, either, tied
from bringup.graphs.nemotron_h import NemotronHConfig

MIXER = "layers.{L}.mixer."


def adapter(config: NemotronHConfig) -> Adapter:
    nemotron = Adapter("nemotron_h", defaults=("out in", "vocab m"), prefix="model.", wrappers=("backbone.",))
    nemotron["model.embed_tokens.weight"] = S("embeddings.weight")
    nemotron["model.norm.weight"] = S("norm_f.weight")
    nemotron["model.layers.{L}.norm.weight"] = S("layers.{L}.norm.weight")
    add_mamba(nemotron, config.mamba, MIXER)
    nemotron[f"model.{MIXER}{{x:q|k|v|o}}_proj.weight"] = S(MIXER + "{x}_proj.weight")
    nemotron[f"model.{MIXER}{{x:up|down|fc1_latent|fc2_latent}}_proj.{{p:weight|bias}}"] = S(MIXER + "{x}_proj.{p}")
    nemotron[f"model.{MIXER}gate.{{p:weight|e_score_correction_bias}}"] = S(MIXER + "gate.{p}")
    shared = "shared_experts.{x}_proj.{p}"
    nemotron[f"model.{MIXER}shared_experts.{{x:up|down}}_proj.{{p:weight|bias}}"] = S(MIXER + shared)
    for x, axes in (("up", "f m"), ("down", "m f")):
        each = stack(S(f"{MIXER}experts.{{E}}.{x}_proj.weight", axes), over="E", n=config.routing.experts)
        nemotron[f"model.{MIXER}experts.{x}_proj"] = either(S(f"{MIXER}experts.{x}_proj", f"e {axes}"), each)
    nemotron["lm_head.weight"] = tied(S("lm_head.weight"), S("embeddings.weight", "vocab m"), when=config.tied_head)
    nemotron.drop("mtp.**", why="the layers that predict further tokens")
    return nemotron
