"""Llama, Mistral and SmolLM2 as transformers saves them: the graph's own names and layouts."""

from __future__ import annotations

from bringup.adapters.algebra.expr import S
from bringup.adapters.planning.adapter import Adapter, tied
from bringup.adapters.planning.drops import drop_rope_tables
from bringup.graphs.decoder import DecoderConfig
from bringup.graphs.llama import LlamaConfig


def adapter(config: LlamaConfig) -> Adapter:
    return table("llama", config)


def table(name: str, config: DecoderConfig) -> Adapter:
    """Files of the bare `LlamaModel` lack the top-level `model.`."""
    llama = Adapter(name, defaults=("out in", "vocab m"), prefix="model.")
    llama["model.{n:embed_tokens|norm}.weight"] = S("{n}.weight")
    llama["model.layers.{L}.{n:input_layernorm|post_attention_layernorm}.weight"] = S("layers.{L}.{n}.weight")
    llama["model.layers.{L}.self_attn.{x:q|k|v|o}_proj.{p:weight|bias}"] = S("layers.{L}.self_attn.{x}_proj.{p}")
    llama["model.layers.{L}.mlp.{x:gate|up|down}_proj.{p:weight|bias}"] = S("layers.{L}.mlp.{x}_proj.{p}")
    head, embedding = S("lm_head.weight"), S("embed_tokens.weight", "vocab m")
    llama["lm_head.weight"] = tied(head, embedding, when=config.tied_head)
    drop_rope_tables(llama)
    return llama
