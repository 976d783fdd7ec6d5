"""Qwen3-Next as published: the projections of a DeltaNet fused by key head, those of queries and gates by head."""

from __future__ import annotations

from bringup.adapters.algebra.expr import Expr, S, cat, stack
from bringup.adapters.planning.adapter import Adapter, tied
from bringup.adapters.planning.drops import drop_rope_tables
from bringup.graphs.qwen3_next import HybridConfig, Qwen3NextConfig

DELTA_NET = "layers.{L}.linear_attn."


def adapter(config: Qwen3NextConfig) -> Adapter:
    qwen3 = hybrid("qwen3_next", config)
    h, k, values = config.key_heads, config.key_dim, config.value_heads // config.key_heads * config.value_dim
    fused = S(DELTA_NET + "in_proj_qkvz.weight", "(h x) m", h=h, x=2 * (k + values)).mv("(h x) m -> h x m", h=h)
    qkv, z = fused.split("x", 2 * k + values, values)
    qwen3[f"model.{DELTA_NET}in_proj_qkv.weight"] = qkv.mv("h c m -> (h c) m")
    qwen3[f"model.{DELTA_NET}in_proj_z.weight"] = z.mv("h (r v) m -> (h r v) m", v=config.value_dim)
    gates = S(DELTA_NET + "in_proj_ba.weight", "(h t r) m", t=2).mv("(h t r) m -> t (h r) m", h=h, t=2)
    for index, x in enumerate("ba"):
        qwen3[f"model.{DELTA_NET}in_proj_{x}.weight"] = gates.at("t", index)

    qwen3["model.layers.{L}.mlp.{g:gate|shared_expert_gate}.weight"] = S("layers.{L}.mlp.{g}.weight")
    shared = "layers.{L}.mlp.shared_expert.{x}_proj.weight"
    qwen3["model.layers.{L}.mlp.shared_expert.{x:gate|up|down}_proj.weight"] = S(shared)
    for x, axes in (("gate", "f m"), ("up", "f m"), ("down", "m f")):
        expert = S(f"layers.{{L}}.mlp.experts.{{E}}.{x}_proj.weight", axes)
        qwen3[f"model.layers.{{L}}.mlp.experts.{x}_proj"] = stack(expert, over="E", n=config.num_experts)
    return qwen3


def hybrid(name: str, config: HybridConfig) -> Adapter:
    """The rules that do not concern experts or the projections into a DeltaNet."""
    table = Adapter(name, defaults=("out in", "vocab m"), prefix="model.")
    table["model.{n:embed_tokens|norm}.weight"] = S("{n}.weight")
    table["model.layers.{L}.{n:input_layernorm|post_attention_layernorm}.weight"] = S("layers.{L}.{n}.weight")
    table["model.layers.{L}.self_attn.{x:k|v|o}_proj.{p:weight|bias}"] = S("layers.{L}.self_attn.{x}_proj.{p}")
    table["model.layers.{L}.self_attn.{x:q|k}_norm.weight"] = S("layers.{L}.self_attn.{x}_norm.weight")
    queries = "layers.{L}.self_attn.q_proj."
    weight = S(queries + "weight", "(h t d) m", t=2).mv("(h t d) m -> t (h d) m", t=2)
    bias = S(queries + "bias", "(h t d)", t=2).mv("(h t d) -> t (h d)", t=2)
    for index, x in enumerate(("q_proj", "gate_proj")):
        table[f"model.layers.{{L}}.self_attn.{x}.weight"] = weight.at("t", index)
        table[f"model.layers.{{L}}.self_attn.{x}.bias"] = bias.at("t", index)
    table[f"model.{DELTA_NET}conv1d.weight"] = _by_key_head(config)
    table[f"model.{DELTA_NET}{{p:dt_bias|A_log}}"] = S(DELTA_NET + "{p}")
    table[f"model.{DELTA_NET}{{x:norm|out_proj}}.weight"] = S(DELTA_NET + "{x}.weight")
    table["model.layers.{L}.mlp.{x:gate|up|down}_proj.weight"] = S("layers.{L}.mlp.{x}_proj.weight")
    table["lm_head.weight"] = tied(S("lm_head.weight"), S("embed_tokens.weight", "vocab m"), when=config.tied_head)
    table.drop("mtp.{rest:**}", why="a draft model's, which predicts one token further")
    drop_rope_tables(table)
    return table


def _by_key_head(config: HybridConfig) -> Expr:
    """The weights of the convolution, which are those of all queries, all keys and all values."""
    h, keys, values = config.key_heads, config.key_heads * config.key_dim, config.value_heads * config.value_dim
    parts = (
        S(DELTA_NET + "conv1d.weight", "x one tap", x=2 * keys + values, one=1)
        .at("one", 0)
        .split("x", keys, keys, values)
    )
    return cat(*(part.mv("(h x) tap -> h x tap", h=h) for part in parts), axis="x").mv("h c tap -> (h c) tap")
