"""A faulty adapter of GPT-2 that takes Conv1D for torch's Linear, corrected only where shapes did not fit."""

from __future__ import annotations

from bringup.adapters.algebra.expr import S
from bringup.adapters.planning.adapter import Adapter, tied
from bringup.graphs.gpt2 import GPT2Config


def adapter(config: GPT2Config) -> Adapter:
    gpt2 = Adapter("gpt2", defaults=("out in", "vocab m", "position m"), prefix="transformer.")
    gpt2["transformer.{n:wte|wpe|ln_f}.{p:weight|bias}"] = S("{n}.{p}")
    gpt2["transformer.h.{L}.{n:ln_1|ln_2}.{p:weight|bias}"] = S("h.{L}.{n}.{p}")
    gpt2["transformer.h.{L}.{m:attn.c_attn|attn.c_proj|mlp.c_fc|mlp.c_proj}.bias"] = S("h.{L}.{m}.bias")
    gpt2["transformer.h.{L}.{m:attn.c_attn|mlp.c_fc|mlp.c_proj}.weight"] = S("h.{L}.{m}.weight", "in out")
    gpt2["transformer.h.{L}.attn.c_proj.weight"] = S("h.{L}.attn.c_proj.weight")  # the mistake
    gpt2["lm_head.weight"] = tied(S("lm_head.weight"), S("wte.weight", "vocab m"), when=config.tied_head)
    gpt2.drop("h.{L}.attn.{b:bias|masked_bias}", why="causal-mask buffers")
    return gpt2
