"""Room for LoRAs next to a matrix: low-rank factors in slots, of which each sequence of a step uses one or none.

N tokens of the step · B sequences · i in · r rank · o out
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from bringup.graphs.core.module import Module, State
from bringup.graphs.ops.lora import lora_expand, lora_shrink

if TYPE_CHECKING:
    from torch import Tensor

    from bringup.graphs.core.step import Step


class LoraSlots(Module):
    """The factors of several LoRAs of one matrix [o, i]: a row of `a` is A [r, i], a row of `b` is scale · Bᵀ [r, o].

    A LoRA of a smaller rank has zeros behind its own.
    """

    def __init__(self, slots: int, rank: int, inputs: int, outputs: int) -> None:
        super().__init__()
        self.a = State("lora r i", lora=slots, r=rank, i=inputs)
        self.b = State("lora r o", lora=slots, r=rank, o=outputs)

    def forward(self, x_Ni: Tensor, y_No: Tensor) -> Tensor:
        """y, the product with the matrix, with what the LoRA of each sequence adds to it; outside of `choosing`, y."""
        chosen = _CHOSEN.get()
        if chosen is None:
            return y_No
        slots_B, step = chosen
        h_Nr = lora_shrink(x_Ni, self.a, slots_B, step)
        return y_No + lora_expand(h_Nr, self.b, slots_B, step)


_CHOSEN: ContextVar[tuple[Tensor, Step] | None] = ContextVar("slot of each sequence, and the step", default=None)


@contextmanager
def choosing(slots_B: Tensor, step: Step) -> Generator[None]:
    """In the block, layers add the LoRA in the slot of each sequence of the step: int64 [B], below 0 for none.

    A forward passes its inputs to its parts, and none of them is the choice of LoRAs: so graphs are the same with LoRAs
    and without.
    """
    token = _CHOSEN.set((slots_B, step))
    try:
        yield
    finally:
        _CHOSEN.reset(token)
