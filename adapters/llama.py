"""Llama, Mistral and SmolLM2 as transformers saves them: the graph's own names and layouts."""

from __future__ import annotations

from bringup.adapters.algebra.expr import S
from bringup.adapters.planning.adapter import Adapter, tied
from bringup.graphs.llama import LlamaConfig


def adapter(config: LlamaConfig) -> Adapter:
    """Files of the bare `LlamaModel` lack the top-level `model.`; older ones contain rope tables."""
    llama = Adapter("llama", defaults=("out in", "vocab m"), prefix="model.")
    llama["model.{n:embed_tokens|norm}.weight"] = S("{n}.weight")
    llama["model.layers.{L}.{n:input_layernorm|post_attention_layernorm}.weight"] = S("layers.{L}.{n}.weight")
    llama["model.layers.{L}.self_attn.{x:q|k|v|o}_proj.{p:weight|bias}"] = S("layers.{L}.self_attn.{x}_proj.{p}")
    llama["model.layers.{L}.mlp.{x:gate|up|down}_proj.{p:weight|bias}"] = S("layers.{L}.mlp.{x}_proj.{p}")
    head, embedding = S("lm_head.weight"), S("embed_tokens.weight", "vocab m")
    llama["lm_head.weight"] = tied(head, embedding, when=config.tied_head)
    llama.drop("layers.{L}.self_attn.rotary_emb.inv_freq", why="rope frequencies: computed from the config")
    llama.drop("layers.{L}.self_attn.rotary_emb.{t:cos_cached|sin_cached}", why="rope tables that ColossalAI saves")
    return llama
