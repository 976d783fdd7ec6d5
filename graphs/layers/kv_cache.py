from __future__ import annotations

from typing import TYPE_CHECKING

from bringup.graphs.core.module import Module, State
from bringup.graphs.ops.kv_cache import write_cache

if TYPE_CHECKING:
    from torch import Tensor


class KVCache(Module):
    """Keys and values of every token so far, one row a slot: [slot, g, d] each."""

    def __init__(self, g: int, d: int) -> None:
        super().__init__()
        self.k = State("slot g d", g=g, d=d)
        self.v = State("slot g d", g=g, d=d)

    def forward(self, slots_N: Tensor, k_NGK: Tensor, v_NGK: Tensor) -> tuple[Tensor, Tensor]:
        """Writes the step's rows and gives the whole tables."""
        write_cache(self.k, slots_N, k_NGK)
        write_cache(self.v, slots_N, v_NGK)
        return self.k, self.v
