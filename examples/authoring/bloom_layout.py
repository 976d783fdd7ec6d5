"""Level 3: another layout. BLOOM's published files, from a base in which each parameter has a tensor of its name.

    bringup check bloom --checkpoint DIR --adapter examples/authoring/bloom_layout.py

Only q, k and v differ: they are concatenated head by head.
"""

from bringup.adapters import Adapter, S
from bringup.graphs.bloom import BloomConfig

LAYER = "transformer.h.{L}.self_attention."


def adapter(config: BloomConfig) -> Adapter:
    base = Adapter("bloom", defaults=("out in", "vocab m"))
    base["{name:**}"] = S("{name}")
    weights = S("h.{L}.self_attention.query_key_value.weight", "(h t d) m", t=3).mv("(h t d) m -> t (h d) m", t=3)
    biases = S("h.{L}.self_attention.query_key_value.bias", "(h t d)", t=3).mv("(h t d) -> t (h d)", t=3)
    parts = {f"{LAYER}{x}_proj.weight": weights.at("t", i) for i, x in enumerate("qkv")}
    parts |= {f"{LAYER}{x}_proj.bias": biases.at("t", i) for i, x in enumerate("qkv")}
    return base.with_(
        names={"transformer": "", "lm_head": "word_embeddings"},
        rules={**parts, "lm_head.weight": S("word_embeddings.weight", "vocab m")},
    )
