"""What the tables of Qwen3-Next and Qwen3.5 share: all rules but those for the projections into a DeltaNet."""

from __future__ import annotations

from bringup.adapters.algebra.expr import Expr, S, cat
from bringup.adapters.planning.adapter import Adapter, tied
from bringup.adapters.planning.drops import drop_rope_tables
from bringup.graphs.hybrid import HybridConfig

MIXER, DELTA_NET = "model.layers.{L}.mixer.", "layers.{L}.linear_attn."


def hybrid(name: str, config: HybridConfig) -> Adapter:
    """The rules without those for experts, and for the projections into a DeltaNet."""
    table = Adapter(name, defaults=("out in", "vocab m"), prefix="model.")
    table["model.{n:embed_tokens|norm}.weight"] = S("{n}.weight")
    add_layers(table)
    conv = S(DELTA_NET + "conv1d.weight", "x one tap", x=channels(config), one=1).at("one", 0)
    table[f"{MIXER}conv1d.weight"] = by_key_head(conv, "tap", config)
    table[f"{MIXER}{{p:dt_bias|A_log}}"] = S(DELTA_NET + "{p}")
    table[f"{MIXER}{{x:norm|out_proj}}.weight"] = S(DELTA_NET + "{x}.weight")
    table["lm_head.weight"] = tied(S("lm_head.weight"), S("embed_tokens.weight", "vocab m"), when=config.tied_head)
    table.drop("mtp.{rest:**}", why="of the draft that predicts a further token: the model `qwen3_mtp`")
    drop_rope_tables(table)
    return table


def add_layers(table: Adapter, at: str = "") -> None:
    """The rules of norms, attention and MLPs without experts. `at`: the place of `layers` in the checkpoint."""
    layer = at + "layers.{L}."
    table["model.layers.{L}.{n:input_layernorm|post_attention_layernorm}.weight"] = S(layer + "{n}.weight")
    table["model.layers.{L}.self_attn.{x:k|v|o}_proj.{p:weight|bias}"] = S(layer + "self_attn.{x}_proj.{p}")
    table["model.layers.{L}.self_attn.{x:q|k}_norm.weight"] = S(layer + "self_attn.{x}_norm.weight")
    weight = S(layer + "self_attn.q_proj.weight", "(h t d) m", t=2).mv("(h t d) m -> t (h d) m", t=2)
    bias = S(layer + "self_attn.q_proj.bias", "(h t d)", t=2).mv("(h t d) -> t (h d)", t=2)
    for index, x in enumerate(("q_proj", "output_gate_proj")):
        table[f"model.layers.{{L}}.self_attn.{x}.weight"] = weight.at("t", index)
        table[f"model.layers.{{L}}.self_attn.{x}.bias"] = bias.at("t", index)
    table["model.layers.{L}.mlp.{x:gate|up|down}_proj.weight"] = S(layer + "mlp.{x}_proj.weight")


def channels(config: HybridConfig) -> int:
    """Those of the queries, keys and values of a DeltaNet."""
    return 2 * config.key_heads * config.key_dim + config.value_heads * config.value_dim


def by_key_head(rows: Expr, other: str, config: HybridConfig, *, tiled: bool = False) -> Expr:
    """Rows of all queries, all keys and all values (axes `x` and `other`), ordered by key head.

    `tiled`: the value heads are in the order that `by_value_head` expects.
    """
    h, keys, values = config.key_heads, config.key_heads * config.key_dim, config.value_heads * config.value_dim
    q, k, v = rows.split("x", keys, keys, values)
    v = by_value_head(v, f"({{}} x) {other}", config) if tiled else v
    parts = (part.mv(f"(h x) {other} -> h x {other}", h=h) for part in (q, k, v))
    return cat(*parts, axis="x").mv(f"h c {other} -> (h c) {other}")


def by_value_head(tiled: Expr, axes: str, config: HybridConfig) -> Expr:
    """Moves the value heads of each key head next to each other: before, the first of each come first, then the second.

    `axes` has {} for the two axes of the value heads.
    """
    h, r = config.key_heads, config.value_heads // config.key_heads
    return tiled.mv(f"{axes.format('r h')} -> {axes.format('h r')}", h=h, r=r)
