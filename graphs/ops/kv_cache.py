"""Caches: paged, one row for each token, in the blocks of a block table; and rings, some rows for each sequence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bringup.graphs.core.step import BLOCK
from bringup.graphs.ops.op import op

if TYPE_CHECKING:
    from torch import Tensor

    from bringup.graphs.core.step import Step


@op("cache_SGK[S G K]! slots_N[N] rows_NGK[N G K] ->")
def write_cache(cache_SGK: Tensor, slots_N: Tensor, rows_NGK: Tensor) -> None:
    """Writes each token's row into its slot, in place, rounded to the cache's dtype.

    Values beyond the range of a narrower dtype are clamped to its largest value: infinity, or NaN in float8_e4m3fn,
    would spread over the complete sequence.
    """
    import torch

    stored = cache_SGK.dtype
    largest = torch.finfo(stored).max
    if largest < torch.finfo(rows_NGK.dtype).max:
        rows_NGK = rows_NGK.clamp(-largest, largest)
    if stored.itemsize == 1:  # torch has no index_copy_ of float8 on a CPU
        cache_SGK[slots_N] = rows_NGK.to(stored)
    else:
        cache_SGK.index_copy_(0, slots_N, rows_NGK.to(stored))


def ring_slots(cache_SGK: Tensor, step: Step, ring: int) -> Tensor:
    """The row of each token in a cache of rings of `ring` rows, int64 [N]; that of padding is the last."""
    import torch

    slots_N = step.per_token(step.rows) * ring + step.positions % ring
    if step.decode:
        return slots_N
    is_padding_N = step.sequences() == step.num_sequences
    return torch.where(is_padding_N, cache_SGK.shape[0] - 1, slots_N)


def ring_positions(step: Step, ring: int) -> Tensor:
    """The position in each row of each sequence's ring, int64 [B, ring]; negative for an empty row."""
    import torch

    last_B1 = step.lengths[:, None] - 1
    return last_B1 - (last_B1 - torch.arange(ring)) % ring


@op("cache_SGK[S G K] -> [B L G K]")
def cached_rows(cache_SGK: Tensor, step: Step, ring: int | None = None) -> Tensor:
    """The rows of each of B sequences, in the cache's dtype.

    For a paged cache: in order of positions, L = P · BLOCK, whatever the lengths of sequences. With `ring`: the rows
    of the ring, L = ring, see `ring_positions`. If the blocks of a step are in order, they are a slice of the cache;
    otherwise they are gathered.
    """
    import torch

    if ring is not None:
        if step.contiguous:
            return cache_SGK[:ring][None]
        return cache_SGK[step.rows[:, None] * ring + torch.arange(ring)]
    if step.contiguous:
        return cache_SGK[: step.block_table.shape[1] * BLOCK][None]
    slots_BPS = step.block_table[:, :, None] * BLOCK + torch.arange(BLOCK)
    return cache_SGK[slots_BPS.flatten(1)]
