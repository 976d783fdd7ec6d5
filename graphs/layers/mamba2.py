"""The mixer of Mamba 2: a state space with a scalar decay for each head (Dao and Gu 2024, "Transformers are SSMs").

N tokens of the step · m hidden · h heads · g groups of heads that share b and c · k channels of b and c · v of a head
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bringup.graphs.config.mamba import MambaConfig
from bringup.graphs.core.module import Module, Param, State
from bringup.graphs.layers.causal_conv import CausalConv
from bringup.graphs.layers.embedding import rounded
from bringup.graphs.layers.linear import Linear
from bringup.graphs.layers.norm import RMSNorm
from bringup.graphs.ops.activation import ACTIVATIONS, scaled, silu, softplus
from bringup.graphs.ops.recurrent.state_space import state_space

if TYPE_CHECKING:
    from torch import Tensor

    from bringup.graphs.core.step import Step


class GroupedRMSNorm(RMSNorm):
    """RMSNorm of each of `groups` equal parts of the channels."""

    def __init__(self, m: int, eps: float, groups: int) -> None:
        super().__init__(m, eps)
        self.groups = groups

    def forward(self, x: Tensor) -> Tensor:
        if self.groups == 1:
            return super().forward(x)
        wide = x.float().view(*x.shape[:-1], self.groups, -1)
        scaled = wide * (wide.pow(2).mean(-1, keepdim=True) + self.eps).rsqrt()
        return self.weight * scaled.flatten(-2).to(x.dtype)


class Mamba2(Module):
    """x, b and c pass a convolution over tokens and an activation. With dt = softplus(projection + bias), the state of
    each head decays by exp(-dt · exp(A_log)), then a token adds dt · b ⊗ x, and its result is c · state + D · x
    (`ops.recurrent.state_space`). Results are multiplied by silu(gate) and normed in float32, by group.
    `MambaConfig.factors` are rounded to the dtype of what they multiply, as in transformers' FalconH1Mixer.

    Ranks divide the heads, and the groups as key heads of attention: a group whose heads several ranks have is
    replicated.
    """

    def __init__(self, m: int, config: MambaConfig, *, eps: float, activation: str = "silu") -> None:
        super().__init__()
        h, g, k, v, bias = config.heads, config.groups, config.state_dim, config.head_dim, config.bias
        self.k, self.v, self.activation = k, v, activation
        self.norm, self.factors = config.norm, config.factors
        self.in_proj_gate = Linear("out:(h v) in:m", h=h, v=v, m=m, bias=bias)
        self.in_proj_xbc = Linear("out:(h v | g k | g k) in:m", h=h, v=v, g=g, k=k, m=m, bias=bias)
        self.in_proj_dt = Linear("out:h in:m", h=h, m=m, bias=bias)
        self.conv1d = CausalConv("(h v | g k | g k)", taps=config.taps, bias=config.conv_bias, h=h, v=v, g=g, k=k)
        self.dt_bias = Param("h", h=h)
        self.A_log = Param("h", h=h)
        self.D = Param("h", h=h)
        # transformers' `norm` applies the gate too
        self.gated_norm = None if config.norm == "none" else GroupedRMSNorm(h * v, eps, g)
        self.out_proj = Linear("out:m in:(h v)", h=h, v=v, m=m, bias=config.out_bias)
        self.state = State("sequence h k v", h=h, k=k, v=v, dtype="float32")

    def forward(self, x_Nm: Tensor, step: Step) -> Tensor:
        import torch

        of_gate, *of_xbc, of_dt = (rounded(factor, x_Nm.dtype) for factor in self.factors)
        xbc_NC, inner = self.in_proj_xbc(x_Nm), self.D.shape[0] * self.v
        shared = (xbc_NC.shape[1] - inner) // 2
        widths = [inner, shared, shared]
        if any(factor != 1 for factor in of_xbc):
            parts = zip(torch.split(xbc_NC, widths, 1), of_xbc, strict=True)
            xbc_NC = torch.cat([part * factor for part, factor in parts], 1)
        mixed_NC = ACTIVATIONS[self.activation](self.conv1d(xbc_NC, step))
        x_NX, b_NX, c_NX = torch.split(mixed_NC, widths, 1)
        b_NGK, c_NGK = b_NX.view(b_NX.shape[0], -1, self.k), c_NX.view(c_NX.shape[0], -1, self.k)
        x_NGRV = x_NX.view(x_NX.shape[0], b_NGK.shape[1], -1, self.v).float()
        dt_NH = softplus(scaled(self.in_proj_dt(x_Nm), of_dt).float() + self.dt_bias.float())
        decay_NH = -self.A_log.float().exp() * dt_NH
        added_NGRV = dt_NH.view(*x_NGRV.shape[:3], 1) * x_NGRV
        result_NHV = state_space(c_NGK, b_NGK, added_NGRV, decay_NH, self.state, step)
        result_Nx = (result_NHV + self.D.float()[:, None] * x_NGRV.flatten(1, 2)).flatten(1)
        if self.gated_norm is not None and self.norm == "before":
            result_Nx = self.gated_norm(result_Nx)
        result_Nx = result_Nx * silu(scaled(self.in_proj_gate(x_Nm), of_gate).float())
        if self.gated_norm is not None and self.norm == "after":
            result_Nx = self.gated_norm(result_Nx)
        return self.out_proj(result_Nx.to(x_Nm.dtype))
