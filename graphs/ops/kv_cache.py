"""The paged cache: one row a token, in blocks that a step's block table names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bringup.graphs.core.step import BLOCK
from bringup.graphs.ops.op import op

if TYPE_CHECKING:
    from torch import Tensor

    from bringup.graphs.core.step import Step


@op("cache_SGK[S G K] slots_N[N] rows_NGK[N G K] ->")
def write_cache(cache_SGK: Tensor, slots_N: Tensor, rows_NGK: Tensor) -> None:
    """Writes each token's row into its slot, in place."""
    cache_SGK.index_copy_(0, slots_N, rows_NGK.to(cache_SGK.dtype))


@op("cache_SGK[S G K] -> [B L G K]")
def cached_rows(cache_SGK: Tensor, step: Step) -> Tensor:
    """The rows of each of B sequences, in order of positions: L = P · BLOCK, whatever their lengths.

    A step whose blocks are in order reads a slice of the cache, others gather by `block_table`.
    """
    import torch

    if step.contiguous:
        return cache_SGK[: step.block_table.shape[1] * BLOCK][None]
    slots_BPS = step.block_table[:, :, None] * BLOCK + torch.arange(BLOCK)
    return cache_SGK[slots_BPS.flatten(1)]
