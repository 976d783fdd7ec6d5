from __future__ import annotations

from typing import TYPE_CHECKING

from bringup.graphs.core.module import Module, Param
from bringup.graphs.layers.packed_weight import expert_product
from bringup.graphs.ops.activation import ACTIVATIONS
from bringup.graphs.ops.moe_experts import blocks_of, from_blocks, to_blocks

if TYPE_CHECKING:
    from torch import Tensor


class Experts(Module):
    """Gated MLPs side by side; a token goes to K of them: down(gated(gate(x), up(x))), weighted and summed."""

    packable = ("gate_proj", "up_proj", "down_proj")

    def __init__(self, e: int, m: int, f: int, activation: str, *, bias: bool = False) -> None:
        super().__init__()
        self.count, self.activation = e, activation
        self.gate_proj = Param("e f m", e=e, f=f, m=m)
        self.up_proj = Param("e f m", e=e, f=f, m=m)
        self.down_proj = Param("e m f", e=e, f=f, m=m)
        self.gate_proj_bias = Param("e f", e=e, f=f) if bias else None
        self.up_proj_bias = Param("e f", e=e, f=f) if bias else None
        self.down_proj_bias = Param("e m", e=e, m=m) if bias else None

    def forward(self, x_Nm: Tensor, chosen_NK: Tensor, weights_NK: Tensor) -> Tensor:
        blocks = blocks_of(chosen_NK, self.count)
        x_BRm = to_blocks(x_Nm, blocks)
        gate_BRf = expert_product(x_BRm, self.gate_proj, self.gate_proj_bias, blocks.expert_B)
        up_BRf = expert_product(x_BRm, self.up_proj, self.up_proj_bias, blocks.expert_B)
        y_BRm = expert_product(self.gated(gate_BRf, up_BRf), self.down_proj, self.down_proj_bias, blocks.expert_B)
        return from_blocks(y_BRm, weights_NK, blocks)

    def gated(self, gate: Tensor, up: Tensor) -> Tensor:
        """act(gate) · up (Shazeer 2020)."""
        return ACTIVATIONS[self.activation](gate) * up
