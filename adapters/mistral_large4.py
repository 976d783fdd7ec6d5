"""Mistral Large 4 as published: Mistral's own names, and a vision model next to the text model.

transformers saves these names too. Other files have the names of its modules.
"""

from __future__ import annotations

from dataclasses import replace

from bringup.adapters.algebra.expr import S
from bringup.adapters.deepseek import table
from bringup.adapters.deepseek_v32 import add_indexer
from bringup.adapters.planning.adapter import Adapter, either, tied
from bringup.adapters.planning.rules import Rule
from bringup.graphs.mistral_large4 import MistralLarge4Config

PLACES = ("model.language_model.", "language_model.model.", "language_model.")
ATTENTION = "layers.{L}.self_attn."
# The published names for those of transformers' modules (`conversion_mapping.py`).
PUBLISHED = {
    "embed_tokens": "tok_embeddings",
    "rotary_emb.alpha": "lerope.alpha",
    "lm_head": "output",
    "input_layernorm": "attention_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn": "attention",
    "self_attn.q_proj": "attention.wq",
    "self_attn.kv_a_proj_with_mqa": "attention.wkv_a_with_mqa",
    "self_attn.kv_a_layernorm": "attention.kv_a_norm",
    "self_attn.kv_b_proj": "attention.wkv_b",
    "self_attn.o_proj": "attention.wo",
    "softmax_scaling.scale": "ssmax_scaling.s",
    "softmax_scaling.bias": "ssmax_scaling.b",
    "mlp": "feed_forward",
    "mlp.gate": "gate",
    "mlp.experts": "experts",
    "mlp.shared_experts": "shared_experts",
    "gate_proj": "w1",
    "down_proj": "w2",
    "up_proj": "w3",
}
VISION = ("vision_encoder", "vision_tower")
PROJECTOR = ("vision_language_adapter", "patch_merger", "pre_mm_projector_norm", "multi_modal_projector")


def adapter(config: MistralLarge4Config) -> Adapter:
    """Files with the names of modules have `model.language_model.`, those of the text model alone `model.`."""
    modules = table("mistral_large4", config, fused=True)
    modules.wrappers = PLACES
    add_indexer(modules, config)
    modules[f"model.{ATTENTION}indexer.q_input_norm.{{p:weight|bias}}"] = S(ATTENTION + "indexer.q_input_norm.{p}")
    for part in ("", "indexer."):
        for name, stored in (("scale", "scale"), ("offset", "bias")):
            modules[f"model.{ATTENTION}{part}growth.{name}"] = S(f"{ATTENTION}{part}softmax_scaling.{stored}")
    modules["model.rotary.alpha"] = S("rotary_emb.alpha")
    published = modules.with_(names=PUBLISHED)
    rules = [_either(*pair, config) for pair in zip(modules.rules, published.rules, strict=True)]
    both = replace(modules, rules=rules, drops=[*modules.drops, *published.drops])
    if config.tied_head:
        both.drop("lm_head.weight", why="the head is tied to the embedding", same_as="embed_tokens.weight")
    for part in VISION:
        both.drop(f"{part}.{{rest:**}}", why="it sees images; this graph is the language model, which reads text")
    for part in PROJECTOR:
        both.drop(f"{part}.{{rest:**}}", why="it projects the features of the vision model to tokens")
    both.drop("mtp_dspark.{rest:**}", why="of a draft that predicts further tokens; transformers has no code for it")
    return both


def _either(modules: Rule, published: Rule, config: MistralLarge4Config) -> Rule:
    """A rule that reads a parameter under either name."""
    if modules.pattern != "lm_head.weight":
        return replace(modules, expr=either(*modules.every, *published.every))
    (head, embedding), (own, other) = modules.every, published.every
    return replace(modules, expr=tied(own, embedding, other, when=True) if config.tied_head else either(head, own))
