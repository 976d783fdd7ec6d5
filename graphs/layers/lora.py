"""Slots for LoRAs of a matrix: low-rank factors, of which each sequence of a step uses one pair or none.

The slots of a parameter P of a module are its part `P_lora`. N tokens of the step · B sequences · S slots · i in ·
r rank · o out
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import TYPE_CHECKING

from bringup.graphs.core.module import Module, State
from bringup.graphs.layers.latent_lora import Unfolded
from bringup.graphs.ops.lora import lora_expand, lora_lookup, lora_shrink, own_sequence
from bringup.graphs.ops.moe_lora import expert_lora_expand, expert_lora_shrink, slots_to_blocks

if TYPE_CHECKING:
    from torch import Tensor

    from bringup.graphs.core.step import Step
    from bringup.graphs.ops.moe_experts import Blocks


class LoraSlots(Module):
    """The factors of several LoRAs of one matrix [o, i]: a row of `a` is A [r, i], a row of `b` is scale · Bᵀ [r, o].

    A LoRA of a smaller rank is padded with zeros. Outside of `choosing` nothing is added.
    """

    def __init__(self, slots: int, rank: int, inputs: int, outputs: int) -> None:
        super().__init__()
        self.a = State("lora r i", lora=slots, r=rank, i=inputs)
        self.b = State("lora r o", lora=slots, r=rank, o=outputs)

    def forward(self, x_Ni: Tensor, y_No: Tensor) -> Tensor:
        """y [N, o], the product with the matrix, plus the product with the LoRA of each sequence."""
        chosen = _CHOSEN.get()
        if chosen is None:
            return y_No
        slots_B, step = chosen
        return y_No + lora_expand(lora_shrink(x_Ni, self.a, slots_B, step), self.b, slots_B, step)

    def rows(self, rows_N: Tensor, y_No: Tensor) -> Tensor:
        """y [N, o], rows of the transposed matrix [i, o], plus the same rows of the LoRA of each sequence."""
        chosen = _CHOSEN.get()
        if chosen is None:
            return y_No
        slots_B, step = chosen
        return y_No + lora_expand(lora_lookup(rows_N, self.a, slots_B, step), self.b, slots_B, step)

    def unfolded(self) -> Unfolded | None:
        """The factors of each sequence; None outside of `choosing`."""
        chosen = _CHOSEN.get()
        if chosen is None:
            return None
        slots_B, step = chosen
        index_B = slots_B.clamp(min=0)
        return Unfolded(self.a[index_B], self.b[index_B], own_sequence(slots_B, step))


class ExpertSlots(Module):
    """As `LoraSlots`, for one matrix per expert, [e, o, i]."""

    def __init__(self, slots: int, rank: int, experts: int, inputs: int, outputs: int) -> None:
        super().__init__()
        self.a = State("lora e r i", lora=slots, e=experts, r=rank, i=inputs)
        self.b = State("lora e r o", lora=slots, e=experts, r=rank, o=outputs)

    def forward(self, x_BRi: Tensor, y_BRo: Tensor, expert_B: Tensor, slot_BR: Tensor | None) -> Tensor:
        """y [B, R, o], the products of blocks, plus those with the LoRAs; `slot_BR` is from `slots_of_rows`."""
        if slot_BR is None:
            return y_BRo
        h_BRr = expert_lora_shrink(x_BRi, self.a, expert_B, slot_BR)
        return y_BRo + expert_lora_expand(h_BRr, self.b, expert_B, slot_BR)


def slots_of_rows(blocks: Blocks) -> Tensor | None:
    """The slot of each row's LoRA, int64 [B, R], negative for none; None outside of `choosing`."""
    chosen = _CHOSEN.get()
    if chosen is None:
        return None
    slots_B, step = chosen
    return slots_to_blocks(step.per_token(slots_B), blocks.row_NK, blocks.expert_B, blocks.rows)


_CHOSEN: ContextVar[tuple[Tensor, Step] | None] = ContextVar("slot of each sequence, and the step", default=None)


@contextmanager
def choosing(slots_B: Tensor, step: Step) -> Generator[None]:
    """In the block, layers apply the LoRA in the slot of each sequence of the step: int64 [B], negative for none.

    The choice of LoRAs is not an argument of any forward, so a graph's code is the same with LoRAs and without.
    """
    token = _CHOSEN.set((slots_B, step))
    try:
        yield
    finally:
        _CHOSEN.reset(token)


@contextmanager
def one_row_each() -> Generator[None]:
    """In the block, the input of layers is one row of each sequence, in order, as in a step of decode."""
    chosen = _CHOSEN.get()
    token = _CHOSEN.set(chosen and (chosen[0], replace(chosen[1], decode=True)))
    try:
        yield
    finally:
        _CHOSEN.reset(token)
