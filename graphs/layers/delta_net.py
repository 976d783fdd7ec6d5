"""Gated DeltaNet: linear attention with a state of fixed size (Yang et al. 2024, "Gated Delta Networks").

N tokens of the step · m hidden · h key heads · r value heads of each · k channels of a query and a key · v of a value ·
c = 2 · k + r · v channels of a key head
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bringup.graphs.core.module import Module, Param, State
from bringup.graphs.layers.causal_conv import CausalConv
from bringup.graphs.layers.linear import Linear
from bringup.graphs.ops.activation import ACTIVATIONS, silu, softplus
from bringup.graphs.ops.norm import rms_norm
from bringup.graphs.ops.recurrent.delta_rule import gated_delta_rule

if TYPE_CHECKING:
    from torch import Tensor

    from bringup.graphs.core.step import Step


class GatedNorm(Module):
    """RMSNorm of each head's result, times silu(gate) (transformers' Qwen3NextRMSNormGated)."""

    def __init__(self, v: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = Param("v", v=v)

    def forward(self, x_NHV: Tensor, gate_NHV: Tensor) -> Tensor:
        return (rms_norm(x_NHV, self.weight, self.eps) * silu(gate_NHV.float())).to(x_NHV.dtype)


class GatedDeltaNet(Module):
    """Queries, keys and values pass a convolution of `taps` tokens and an activation; see `ops.delta_rule`.

    The channels of a key head are consecutive: of its query, its key, and the values of its value heads. So ranks
    divide the key heads with their value heads.
    """

    def __init__(
        self,
        m: int,
        key_heads: int,
        value_heads: int,
        k: int,
        v: int,
        *,
        taps: int,
        eps: float,
        activation: str = "silu",
    ) -> None:
        super().__init__()
        h, r = key_heads, value_heads // key_heads
        c = 2 * k + r * v
        self.c, self.k, self.v, self.activation = c, k, v, activation
        self.in_proj_qkv = Linear("out:(h c) in:m", h=h, c=c, m=m, bias=False)
        self.in_proj_z = Linear("out:(h r v) in:m", h=h, r=r, v=v, m=m, bias=False)
        self.in_proj_b = Linear("out:(h r) in:m", h=h, r=r, m=m, bias=False)
        self.in_proj_a = Linear("out:(h r) in:m", h=h, r=r, m=m, bias=False)
        self.conv1d = CausalConv("(h c)", taps=taps, h=h, c=c)
        self.dt_bias = Param("(h r)", h=h, r=r)
        self.A_log = Param("(h r)", h=h, r=r)
        self.norm = GatedNorm(v, eps)
        self.out_proj = Linear("out:m in:(h r v)", h=h, r=r, v=v, m=m, bias=False)
        self.state = State("sequence (h r) k v", h=h, r=r, k=k, v=v, dtype="float32")

    def forward(self, x_Nm: Tensor, step: Step) -> Tensor:
        import torch

        mixed_NGC = self.conv1d(self.in_proj_qkv(x_Nm), step).unflatten(1, (-1, self.c))
        q_NGK, k_NGK, v_NGX = torch.split(
            ACTIVATIONS[self.activation](mixed_NGC), [self.k, self.k, self.c - 2 * self.k], 2
        )
        decay_NH = -self.A_log.float().exp() * softplus(self.in_proj_a(x_Nm).float() + self.dt_bias)
        beta_NH = self.in_proj_b(x_Nm).sigmoid()
        v_NGRV = v_NGX.view(*v_NGX.shape[:2], -1, self.v)
        mixed_NHV = gated_delta_rule(q_NGK, k_NGK, v_NGRV, decay_NH, beta_NH, self.state, step)
        gate_NHV = self.in_proj_z(x_Nm).unflatten(1, (-1, self.v))
        return self.out_proj(self.norm(mixed_NHV, gate_NHV).flatten(1))
