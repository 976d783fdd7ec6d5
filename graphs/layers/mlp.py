from __future__ import annotations

from typing import TYPE_CHECKING

from bringup.graphs.core.module import Module
from bringup.graphs.layers.linear import Linear
from bringup.graphs.ops.activation import ACTIVATIONS, scaled

if TYPE_CHECKING:
    from torch import Tensor


class MLP(Module):
    """down(act(up(x))), with biases by default (Vaswani et al. 2017, section 3.3), under Megatron's names."""

    def __init__(self, m: int, f: int, activation: str, *, bias: bool = True, out_bias: bool = True) -> None:
        super().__init__()
        self.activation = activation
        self.dense_h_to_4h = Linear("out:f in:m", f=f, m=m, bias=bias)
        self.dense_4h_to_h = Linear("out:m in:f", m=m, f=f, bias=out_bias)

    def forward(self, x_Nm: Tensor) -> Tensor:
        return self.dense_4h_to_h(ACTIVATIONS[self.activation](self.dense_h_to_4h(x_Nm)))


class GatedMLP(Module):
    """down(act(gate(x)) · up(x)) (Shazeer 2020). `factors` multiply the gate before the activation, and the result."""

    def __init__(
        self, m: int, f: int, activation: str, *, bias: bool = False, factors: tuple[float, float] = (1.0, 1.0)
    ) -> None:
        super().__init__()
        self.activation, self.factors = activation, factors
        self.gate_proj = Linear("out:f in:m", f=f, m=m, bias=bias)
        self.up_proj = Linear("out:f in:m", f=f, m=m, bias=bias)
        self.down_proj = Linear("out:m in:f", m=m, f=f, bias=bias)

    def forward(self, x_Nm: Tensor) -> Tensor:
        of_gate, of_result = self.factors
        gate_Nf = ACTIVATIONS[self.activation](scaled(self.gate_proj(x_Nm), of_gate))
        return scaled(self.down_proj(gate_Nf * self.up_proj(x_Nm)), of_result)
