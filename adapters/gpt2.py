"""GPT-2 as published: Conv1D matrices stored [in, out], the head tied, causal masks stored with the weights."""

from __future__ import annotations

from bringup.adapters.algebra.expr import S
from bringup.adapters.planning.adapter import Adapter, tied
from bringup.graphs.gpt2 import GPT2Config


def adapter(config: GPT2Config) -> Adapter:
    """The original files lack the top-level `transformer.`; those saved by transformers have it."""
    gpt2 = Adapter("gpt2", defaults=("in out", "vocab m", "position m"), prefix="transformer.")
    gpt2["transformer.{n:wte|wpe|ln_f}.{p:weight|bias}"] = S("{n}.{p}")
    gpt2["transformer.h.{L}.{n:ln_1|ln_2}.{p:weight|bias}"] = S("h.{L}.{n}.{p}")
    gpt2["transformer.h.{L}.{m:attn.c_attn|attn.c_proj|mlp.c_fc|mlp.c_proj}.{p:weight|bias}"] = S("h.{L}.{m}.{p}")
    head, embedding = S("lm_head.weight", "vocab m"), S("wte.weight", "vocab m")
    gpt2["lm_head.weight"] = tied(head, embedding, when=config.tied_head)
    gpt2.drop("h.{L}.attn.{b:bias|masked_bias}", why="causal-mask buffers")
    return gpt2
