"""Names under which checkpoints have rope tables."""

from __future__ import annotations

import re
from collections.abc import Iterable

MODULES = {"exaone": "rotary"}  # of another name than `rotary_emb`
WITHOUT_ROPE = {"gpt2", "bloom", "nemotron_h"}
TABLES = ("inv_freq", "cos_cached", "sin_cached")
ATTENTION = re.compile(r"(.*?)((?:layers|h|midlayer)\.(?:\d+\.)?(?:self_attn|attention|attn)\.(?:attention\.)?)[^.]+\.")


def rope_tables(family: str, names: Iterable[str]) -> set[str]:
    """The tables of each layer's attention, as transformers saved them before 4.39, and those of the model since then.

    `names` are those of the checkpoint's tensors.
    """
    module = MODULES.get(family, "rotary_emb")
    found = set(filter(None, map(ATTENTION.match, names)))
    places = {f"{layer[1]}{at}{module}" for layer in found for at in (layer[2], "")}
    return {f"{place}.{table}" for place in places for table in TABLES}
