"""Multi-head latent attention, recognised as the class that transformers' DeepSeek-V3 has."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache

from bringup.compile.draft.modelling.parts import Part, models_folder, parts_of

NAMES = ("Attention", "yarn_apply_mscale", "yarn_get_mscale", "apply_rotary_pos_emb_interleave")
EPS = re.compile(r"eps(: float)?=1e-0?6\b")  # of the norms of latents, to which no epsilon is passed


def latent_parts(parts: Mapping[str, Part]) -> frozenset[str]:
    """The names of the parts that `LatentAttention` computes; empty unless the attention is one of them."""
    reference = _reference()
    same = {part.name for part in parts.values() if part.name in reference and _same(part, reference[part.name])}
    norms = [part for part in parts.values() if part.name == "RMSNorm"]
    return frozenset(same) if "Attention" in same and norms and EPS.search(norms[0].arguments) else frozenset()


def _same(part: Part, other: Part) -> bool:
    return part.every == other.every and part.of_any_config == other.of_any_config


@cache
def _reference() -> Mapping[str, Part]:
    folder = models_folder()
    file = folder / "deepseek_v3" / "modeling_deepseek_v3.py" if folder else None
    if file is None or not file.is_file():
        return {}
    parts = parts_of(file, "DeepseekV3ForCausalLM", {}).values()
    return {part.name: part for part in parts if part.name in NAMES}
