from __future__ import annotations

from typing import TYPE_CHECKING

from bringup.graphs.core.axes import parse, shape_of, show
from bringup.graphs.core.module import Module, Param
from bringup.graphs.layers.latent_lora import Unfolded
from bringup.graphs.layers.lora import LoraSlots
from bringup.graphs.layers.packed_weight import product

if TYPE_CHECKING:
    from torch import Tensor


class Linear(Module):
    """`weight` has these two axes, output first; `bias` has the first of them.

    Linear("out:(t h d) in:m", t=3, h=12, d=64, m=768)
    """

    packable = ("weight",)
    lora_parameters = ("weight",)

    def __init__(self, axes: str, *, bias: bool = True, **sizes: int) -> None:
        super().__init__()
        out, _ = parse(axes)
        names = {node.name for node in out.walk()}
        self.weight = Param(axes, sizes)
        self.bias = Param(show((out,)), {k: v for k, v in sizes.items() if k in names}) if bias else None
        self.weight_lora: LoraSlots | None = None

    def add_lora(self, slots: int, rank: int) -> None:
        """Adds slots for `slots` LoRAs of up to `rank`, before the weight is packed; see `core.lora`."""
        outputs, inputs = shape_of(self.weight.axes)
        self.weight_lora = LoraSlots(slots, rank, inputs, outputs)

    def adapted(self, x: Tensor, y: Tensor) -> Tensor:
        """y, the product of x and the weight, plus the products of x with the LoRAs."""
        return y if self.weight_lora is None else self.weight_lora(x, y)

    def unfolded(self) -> Unfolded | None:
        """The LoRA factors of the weight, for a caller that multiplies with it itself; see `LoraSlots.unfolded`."""
        return None if self.weight_lora is None else self.weight_lora.unfolded()

    def forward(self, x: Tensor) -> Tensor:
        return self.adapted(x, product(x, self.weight, self.bias))
