"""A decoder whose layers have a short convolution, gated DeltaNet, and attention, in turns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bringup.adapters import Adapter, S
from bringup.adapters.llama import adapter as llama_adapter
from bringup.graphs import Family
from bringup.graphs.core.module import Module
from bringup.graphs.decoder import PreNormLayer
from bringup.graphs.layers.causal_conv import CausalConv
from bringup.graphs.layers.delta_net import GatedDeltaNet
from bringup.graphs.layers.linear import Linear
from bringup.graphs.layers.mlp import GatedMLP
from bringup.graphs.llama import Llama, LlamaConfig

if TYPE_CHECKING:
    from torch import Tensor

HEADS, KEYS, VALUES = (2, 4), 8, 6  # of gated DeltaNet: key heads and value heads, and their channels


class ShortConv(Module):
    """The first of three parts of a projection, convolved, times the second."""

    def __init__(self, m: int) -> None:
        super().__init__()
        self.in_proj = Linear("out:(t c) in:m", t=2, c=m, m=m, bias=False)
        self.conv = CausalConv("c", taps=3, bias=True, c=m)
        self.out_proj = Linear("out:m in:c", m=m, c=m, bias=False)

    def forward(self, x_Nm: Tensor, cos: Tensor, sin: Tensor, step: Any) -> Tensor:
        gate_Nc, x_Nc = self.in_proj(x_Nm).chunk(2, 1)
        return self.out_proj(gate_Nc * self.conv(x_Nc, step))


class DeltaNet(GatedDeltaNet):
    def forward(self, x_Nm: Tensor, cos: Tensor, sin: Tensor, step: Any) -> Tensor:
        return super().forward(x_Nm, step)


class Mixed(Llama):
    def layer(self, config: LlamaConfig, index: int) -> PreNormLayer:
        m = config.hidden
        if index % 3 == 2:
            return super().layer(config, index)
        mixers = ShortConv(m), DeltaNet(m, *HEADS, KEYS, VALUES, taps=4, eps=config.eps)
        return PreNormLayer(m, config.eps, mixers[index % 3], GatedMLP(m, config.ffn, config.activation))


def adapter(config: LlamaConfig) -> Adapter:
    rules = llama_adapter(config)
    at = "layers.{L}.self_attn"
    projections = "{n:in_proj|out_proj|in_proj_qkv|in_proj_z|in_proj_b|in_proj_a}.weight"
    rules[f"model.{at}.{projections}"] = S(f"{at}.{{n}}.weight")
    rules[f"model.{at}.conv.weight"] = S(f"{at}.conv.weight", "c tap")
    rules[f"model.{at}.conv.bias"] = S(f"{at}.conv.bias")
    rules[f"model.{at}.conv1d.weight"] = S(f"{at}.conv1d.weight", "(h c) tap")
    rules[f"model.{at}.{{n:dt_bias|A_log|norm.weight}}"] = S(f"{at}.{{n}}")
    return rules


family = Family(name="mixed", graph=Mixed, config=LlamaConfig, adapter=adapter, architectures=("MixedForCausalLM",))
