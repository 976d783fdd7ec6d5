"""The tensors of Mamba 2 layers as published: one matrix into the mixer, with gates, x, b, c and dt by rows."""

from __future__ import annotations

from bringup.adapters.algebra.expr import S
from bringup.adapters.planning.adapter import Adapter
from bringup.graphs.config.mamba import MambaConfig

MIXER = "model.layers.{L}.mixer."
CHANNELS = "(h v | g k | g k)"  # of a convolution: x, b and c


def add_mamba(table: Adapter, config: MambaConfig, published: str) -> None:
    """Adds the rules of the mixers, whose names begin with `published` in checkpoints."""
    add_projections(table, config, published + "in_proj")
    table[f"{MIXER}conv1d.weight"] = S(f"{published}conv1d.weight", f"{CHANNELS} one tap", one=1).at("one", 0)
    table[f"{MIXER}conv1d.bias"] = S(f"{published}conv1d.bias")
    table[f"{MIXER}{{p:dt_bias|A_log|D}}"] = S(f"{published}{{p}}")
    table[f"{MIXER}gated_norm.weight"] = S(f"{published}norm.weight")
    table[f"{MIXER}out_proj.{{p:weight|bias}}"] = S(f"{published}out_proj.{{p}}")


def add_projections(table: Adapter, config: MambaConfig, published: str) -> None:
    """Adds the rules of the projections into the mixers, which are one module of that name in checkpoints."""
    inner, shared = config.heads * config.head_dim, config.groups * config.state_dim
    sizes = (inner, inner + 2 * shared, config.heads)
    weights = S(f"{published}.weight", "out in", out=sum(sizes)).split("out", *sizes)
    biases = S(f"{published}.bias", "out", out=sum(sizes)).split("out", *sizes)
    for part, weight, bias in zip(("gate", "xbc", "dt"), weights, biases, strict=True):
        table[f"{MIXER}in_proj_{part}.weight"] = weight
        table[f"{MIXER}in_proj_{part}.bias"] = bias
