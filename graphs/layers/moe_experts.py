from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from bringup.graphs.core.axes import shape_of
from bringup.graphs.core.module import Module, Param
from bringup.graphs.layers.lora import ExpertSlots, slots_of_rows
from bringup.graphs.layers.packed_weight import expert_product
from bringup.graphs.ops.activation import ACTIVATIONS
from bringup.graphs.ops.moe_experts import blocks_of, from_blocks, to_blocks

if TYPE_CHECKING:
    from torch import Tensor


class Experts(Module):
    """MLPs; a token is routed to K of them: down(gated(gate(x), up(x))), weighted and summed.

    Those that are not `gated` compute down(act(up(x))). If `weigh` is "inputs", the weights multiply the inputs of
    the experts instead of their results.
    """

    packable = ("gate_proj", "up_proj", "down_proj")
    lora_parameters = packable

    def __init__(
        self,
        e: int,
        m: int,
        f: int,
        activation: str,
        *,
        bias: bool = False,
        gated: bool = True,
        weigh: Literal["results", "inputs"] = "results",
    ) -> None:
        super().__init__()
        self.count, self.activation, self.weigh = e, activation, weigh
        self.gate_proj = Param("e f m", e=e, f=f, m=m) if gated else None
        self.up_proj = Param("e f m", e=e, f=f, m=m)
        self.down_proj = Param("e m f", e=e, f=f, m=m)
        self.gate_proj_bias = Param("e f", e=e, f=f) if bias and gated else None
        self.up_proj_bias = Param("e f", e=e, f=f) if bias else None
        self.down_proj_bias = Param("e m", e=e, m=m) if bias else None
        self.gate_proj_lora: ExpertSlots | None = None
        self.up_proj_lora: ExpertSlots | None = None
        self.down_proj_lora: ExpertSlots | None = None

    def add_lora(self, slots: int, rank: int) -> None:
        """As `Linear.add_lora`, for all parameters."""
        e, f, m = shape_of(self.up_proj.axes)
        self.gate_proj_lora = None if self.gate_proj is None else ExpertSlots(slots, rank, e, m, f)
        self.up_proj_lora = ExpertSlots(slots, rank, e, m, f)
        self.down_proj_lora = ExpertSlots(slots, rank, e, f, m)

    def forward(self, x_Nm: Tensor, selected_NK: Tensor, weights_NK: Tensor) -> Tensor:
        blocks = blocks_of(selected_NK, self.count)
        slot_BR = None if self.up_proj_lora is None else slots_of_rows(blocks)

        def product(x_BRi: Tensor, weight: Any, bias: Tensor | None, lora: ExpertSlots | None) -> Tensor:
            y_BRo = expert_product(x_BRi, weight, bias, blocks.expert_B)
            return y_BRo if lora is None else lora(x_BRi, y_BRo, blocks.expert_B, slot_BR)

        if self.weigh == "inputs":
            # A row for each selected expert of a token, since their weights differ.
            x_Fm = (x_Nm[:, None] * weights_NK[..., None]).flatten(0, 1)
            x_BRm = to_blocks(x_Fm, blocks._replace(row_NK=blocks.row_NK.reshape(-1, 1)))
            weights_NK = weights_NK.new_ones(weights_NK.shape)
        else:
            x_BRm = to_blocks(x_Nm, blocks)
        if self.gate_proj is None:
            up_BRf = product(x_BRm, self.up_proj, self.up_proj_bias, self.up_proj_lora)
            inner_BRf = ACTIVATIONS[self.activation](up_BRf)
        else:
            gate_BRf = product(x_BRm, self.gate_proj, self.gate_proj_bias, self.gate_proj_lora)
            up_BRf = product(x_BRm, self.up_proj, self.up_proj_bias, self.up_proj_lora)
            inner_BRf = self.gated(gate_BRf, up_BRf)
        y_BRm = product(inner_BRf, self.down_proj, self.down_proj_bias, self.down_proj_lora)
        return from_blocks(y_BRm, weights_NK, blocks)

    def gated(self, gate: Tensor, up: Tensor) -> Tensor:
        """act(gate) · up (Shazeer 2020)."""
        return ACTIVATIONS[self.activation](gate) * up
