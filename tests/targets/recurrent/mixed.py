"""A decoder whose layers have a short convolution, gated DeltaNet, attention, and a state space, in turns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bringup.adapters import Adapter, S
from bringup.adapters.llama import adapter as llama_adapter
from bringup.graphs import Family
from bringup.graphs.core.module import Module, Param, State
from bringup.graphs.decoder import PreNormLayer
from bringup.graphs.layers.causal_conv import CausalConv
from bringup.graphs.layers.delta_net import GatedDeltaNet
from bringup.graphs.layers.linear import Linear
from bringup.graphs.layers.mlp import GatedMLP
from bringup.graphs.llama import Llama, LlamaConfig
from bringup.graphs.ops.activation import softplus
from bringup.graphs.ops.recurrent.state_space import state_space

if TYPE_CHECKING:
    from torch import Tensor

HEADS, KEYS, VALUES = (2, 4), 8, 6  # of gated DeltaNet: key heads and value heads, and their channels
GROUPS = 1  # key heads of the state space, which has as many value heads, and the same channels


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


class StateSpace(Module):
    """Queries, keys and inputs are parts of one projection; an input is multiplied by its time step in float32."""

    def __init__(self, m: int) -> None:
        super().__init__()
        g, h, k, v = GROUPS, HEADS[1], KEYS, VALUES
        self.in_proj_qkv = Linear("out:(g k | g k | h v) in:m", g=g, h=h, k=k, v=v, m=m, bias=False)
        self.in_proj_a = Linear("out:h in:m", h=h, m=m, bias=False)
        self.A_log = Param("h", h=h)
        self.out_proj = Linear("out:m in:(h v)", h=h, v=v, m=m, bias=False)
        self.state = State("sequence h k v", h=h, k=k, v=v, dtype="float32")

    def forward(self, x_Nm: Tensor, cos: Tensor, sin: Tensor, step: Any) -> Tensor:
        q, k, v = self.in_proj_qkv(x_Nm).split([GROUPS * KEYS, GROUPS * KEYS, HEADS[1] * VALUES], 1)
        q_NGK, k_NGK = (each.unflatten(1, (GROUPS, KEYS)) for each in (q, k))
        dt_NH = softplus(self.in_proj_a(x_Nm).float())
        v_NHV = dt_NH[..., None] * v.unflatten(1, (HEADS[1], VALUES)).float()
        decay_NH = -self.A_log.float().exp() * dt_NH
        out_NHV = state_space(q_NGK, k_NGK, v_NHV.unflatten(1, (GROUPS, -1)), decay_NH, self.state, step)
        return self.out_proj(out_NHV.flatten(1).to(x_Nm.dtype))


class Mixed(Llama):
    def layer(self, config: LlamaConfig, index: int) -> PreNormLayer:
        m = config.hidden
        if index % 4 == 2:
            return super().layer(config, index)
        delta_net = DeltaNet(m, *HEADS, KEYS, VALUES, taps=4, eps=config.eps)
        mixer = {0: ShortConv(m), 1: delta_net, 3: StateSpace(m)}[index % 4]
        return PreNormLayer(m, config.eps, mixer, GatedMLP(m, config.ffn, config.activation))


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
