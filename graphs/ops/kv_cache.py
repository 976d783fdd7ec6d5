from __future__ import annotations

from typing import TYPE_CHECKING

from bringup.graphs.ops.op import op

if TYPE_CHECKING:
    from torch import Tensor


@op("cache_SGK[S G K]! slots_N[N] rows_NGK[N G K] ->")
def write_cache(cache_SGK: Tensor, slots_N: Tensor, rows_NGK: Tensor) -> None:
    """Writes each token's row into its slot, in place."""
    cache_SGK.index_copy_(0, slots_N, rows_NGK.to(cache_SGK.dtype))
