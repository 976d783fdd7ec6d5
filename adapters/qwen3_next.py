"""Qwen3-Next as published: the projections of a DeltaNet fused by key head, those of queries and gates by head."""

from __future__ import annotations

from bringup.adapters.algebra.expr import Expr, S, cat, stack
from bringup.adapters.planning.adapter import Adapter, tied
from bringup.adapters.planning.drops import drop_rope_tables
from bringup.graphs.qwen3_next import HybridConfig, Qwen3NextConfig

MIXER, DELTA_NET = "model.layers.{L}.mixer.", "layers.{L}.linear_attn."


def adapter(config: Qwen3NextConfig) -> Adapter:
    qwen3 = hybrid("qwen3_next", config)
    qkv, z = of_key_heads(DELTA_NET + "in_proj_qkvz.weight", config)
    qwen3[f"{MIXER}in_proj_qkv.weight"] = qkv
    qwen3[f"{MIXER}in_proj_z.weight"] = z
    for x, rows in zip("ba", gates(DELTA_NET + "in_proj_ba.weight"), strict=True):
        qwen3[f"{MIXER}in_proj_{x}.weight"] = rows
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
    for index, x in enumerate(("q_proj", "output_gate_proj")):
        table[f"model.layers.{{L}}.self_attn.{x}.weight"] = weight.at("t", index)
        table[f"model.layers.{{L}}.self_attn.{x}.bias"] = bias.at("t", index)
    conv = S(DELTA_NET + "conv1d.weight", "x one tap", x=channels(config), one=1).at("one", 0)
    table[f"{MIXER}conv1d.weight"] = by_key_head(conv, "tap", config)
    table[f"{MIXER}{{p:dt_bias|A_log}}"] = S(DELTA_NET + "{p}")
    table[f"{MIXER}{{x:norm|out_proj}}.weight"] = S(DELTA_NET + "{x}.weight")
    table["model.layers.{L}.mlp.{x:gate|up|down}_proj.weight"] = S("layers.{L}.mlp.{x}_proj.weight")
    table["lm_head.weight"] = tied(S("lm_head.weight"), S("embed_tokens.weight", "vocab m"), when=config.tied_head)
    table.drop("mtp.{rest:**}", why="a draft model's, which predicts one token further")
    drop_rope_tables(table)
    return table


def of_key_heads(name: str, config: HybridConfig) -> tuple[Expr, Expr]:
    """The rows of in_proj_qkv and in_proj_z in a tensor with those of q, k, values and gates of each key head."""
    h, k, v, r = config.key_heads, config.key_dim, config.value_dim, config.value_heads // config.key_heads
    rows = S(name, "(h x) m", h=h, x=2 * (k + r * v)).mv("(h x) m -> h x m", h=h)
    qkv, z = rows.split("x", 2 * k + r * v, r * v)
    return qkv.mv("h c m -> (h c) m"), z.mv("h (r v) m -> (h r v) m", r=r)


def gates(name: str) -> tuple[Expr, Expr]:
    """The rows of in_proj_b and in_proj_a in a tensor with those of each key head."""
    rows = S(name, "(h t r) m", t=2).mv("(h t r) m -> t (h r) m", t=2)
    return rows.at("t", 0), rows.at("t", 1)


def channels(config: HybridConfig) -> int:
    """Those of the queries, keys and values of a DeltaNet."""
    return 2 * config.key_heads * config.key_dim + config.value_heads * config.value_dim


def by_key_head(rows: Expr, other: str, config: HybridConfig) -> Expr:
    """Rows of all queries, all keys and all values (axes `x` and `other`), ordered by key head."""
    h, keys, values = config.key_heads, config.key_heads * config.key_dim, config.value_heads * config.value_dim
    parts = (part.mv(f"(h x) {other} -> h x {other}", h=h) for part in rows.split("x", keys, keys, values))
    return cat(*parts, axis="x").mv(f"h c {other} -> (h c) {other}")
