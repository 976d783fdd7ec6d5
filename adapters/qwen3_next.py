"""Qwen3-Next as published: the projections of a DeltaNet fused by key head, those of queries and gates by head."""

from __future__ import annotations

from bringup.adapters.algebra.expr import Expr, S
from bringup.adapters.hybrid import DELTA_NET, MIXER, hybrid
from bringup.adapters.planning.adapter import Adapter
from bringup.adapters.shared_experts import add_shared_experts
from bringup.graphs.hybrid import HybridConfig
from bringup.graphs.qwen3_next import Qwen3NextConfig


def adapter(config: Qwen3NextConfig) -> Adapter:
    qwen3 = hybrid("qwen3_next", config)
    qkv, z = of_key_heads(DELTA_NET + "in_proj_qkvz.weight", config)
    qwen3[f"{MIXER}in_proj_qkv.weight"] = qkv
    qwen3[f"{MIXER}in_proj_z.weight"] = z
    for x, rows in zip("ba", gates(DELTA_NET + "in_proj_ba.weight"), strict=True):
        qwen3[f"{MIXER}in_proj_{x}.weight"] = rows
    add_shared_experts(qwen3, config.num_experts)
    return qwen3


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
