"""A faulty adapter of Llama that reads one matrix as if the file were written by a Conv1D."""

from __future__ import annotations

from bringup.adapters.algebra.expr import S
from bringup.adapters.llama import adapter as published
from bringup.adapters.planning.adapter import Adapter
from bringup.graphs.llama import LlamaConfig


def adapter(config: LlamaConfig) -> Adapter:
    llama = published(config)
    llama.rules = [rule for rule in llama.rules if "self_attn" not in rule.pattern]
    llama["model.layers.{L}.self_attn.{x:k|v|o}_proj.weight"] = S("layers.{L}.self_attn.{x}_proj.weight")
    llama["model.layers.{L}.self_attn.q_proj.weight"] = S("layers.{L}.self_attn.q_proj.weight", "in out")  # the mistake
    return llama
