from __future__ import annotations

from typing import TYPE_CHECKING

from bringup.graphs.core.module import State, Windowed
from bringup.graphs.core.options import current_options
from bringup.graphs.ops.kv_cache import ring_slots, write_cache

if TYPE_CHECKING:
    from torch import Tensor

    from bringup.graphs.core.step import Step


class KVCache(Windowed):
    """Keys and values of every token so far, one row for each slot: [slot, g, d] each.

    `values` is the number of channels of a value, if other than d.

    With a `window`, at least those of the last `window` tokens: `ring` is then the number of rows of each sequence, if
    that is less than its context. `attention` supports both.

    `of` is the cache of an earlier layer with the same sizes: `k` and `v` are those of that layer, and are only read.
    """

    def __init__(
        self, g: int, d: int, window: int | None = None, *, values: int | None = None, of: KVCache | None = None
    ) -> None:
        super().__init__(window)
        dtype = current_options().cache_dtype
        k, v = (None, None) if of is None else (of.k, of.v)
        self.k = State("slot g d", g=g, d=d, dtype=dtype, window=window, of=k)
        self.v = State("slot g d", g=g, d=values or d, dtype=dtype, window=window, of=v)

    def forward(self, step: Step, k_NGK: Tensor, v_NGK: Tensor) -> tuple[Tensor, Tensor]:
        """Writes the step's keys and values; returns the complete caches [slot, g, d]."""
        slots_N = step.slots if self.ring is None else ring_slots(self.k, step, self.ring)
        write_cache(self.k, slots_N, k_NGK)
        write_cache(self.v, slots_N, v_NGK)
        return self.k, self.v
