"""Multi-head latent attention, recognised as a class that transformers has for DeepSeek-V3, DeepSeek-V2 or MiniCPM3."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache

from bringup.compile.draft.modelling.part import Part
from bringup.compile.draft.modelling.parts import models_folder, parts_of

# By how rope rotates: by the key `rope_interleave`, adjacent channels, or halves. The architecture, and its parts.
REFERENCES = {
    "key": ("deepseek_v3", "DeepseekV3ForCausalLM", ("apply_rotary_pos_emb_interleave",)),
    "pairs": ("deepseek_v2", "DeepseekV2ForCausalLM", ("apply_rotary_emb", "RotaryEmbedding")),
    "halves": ("minicpm3", "MiniCPM3ForCausalLM", ("apply_rotary_pos_emb",)),
}
NAMES = ("Attention", "yarn_apply_mscale", "yarn_get_mscale")
EPS = re.compile(r"eps(: float)?=1e-0?6\b")  # of the norms of latents, to which no epsilon is passed


def latent_parts(parts: Mapping[str, Part]) -> tuple[str, frozenset[str]]:
    """How rope rotates, and the names of the parts that `LatentAttention` computes; ('', nothing) unless the attention
    is one of them."""
    norms = [part for part in parts.values() if part.name == "RMSNorm"]
    for turns in REFERENCES if norms and EPS.search(norms[0].arguments) else ():
        reference = _reference(turns)
        same = {part.name for part in parts.values() if part.name in reference and _same(part, reference[part.name])}
        if {"Attention", REFERENCES[turns][2][0]} <= same:
            return turns, frozenset(same)
    return "", frozenset()


def _same(part: Part, other: Part) -> bool:
    return part.every == other.every and part.of_any_config == other.of_any_config


@cache
def _reference(turns: str) -> Mapping[str, Part]:
    kind, architecture, names = REFERENCES[turns]
    folder = models_folder()
    file = folder / kind / f"modeling_{kind}.py" if folder else None
    if file is None or not file.is_file():
        return {}
    parts = parts_of(file, architecture, {}).values()
    return {part.name: part for part in parts if part.name in (*NAMES, *names)}
