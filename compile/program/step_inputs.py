"""The arguments of a step, for one sequence whose cache rows lie in order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from bringup.graphs.core.graph import Step
from bringup.graphs.ops.attention import BLOCK

if TYPE_CHECKING:
    import numpy as np


def slots_for(context: int) -> int:
    """Cache rows for `context` tokens: whole blocks, and one block more for padding to be written to."""
    return (-(-context // BLOCK) + 1) * BLOCK


def chunks_of(count: int, sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Prefill of `count` tokens by the given lengths: how many tokens each run takes in, and the length of its entry.

    The last run is padded. A longer entry is taken only if it is at least half full: padding then costs at most what
    the prompt itself does, while few lengths have to be compiled.
    """
    while count:
        fitting = next((size for size in sorted(sizes) if count <= size <= 2 * count), None)
        size = fitting or max((size for size in sizes if size < count), default=min(sizes))
        taken = min(count, size)
        yield taken, size
        count -= taken


def make_step(
    tokens: list[int], first: int, size: int, context: int, total: int | None = None
) -> dict[str, np.ndarray]:
    """`tokens` at positions from `first` on, padded to `size`: the arrays of `Step`, by name.

    `total`: tokens of the sequence once the prompt is in, where these are a part of it.

    Padding stands at the last position and is written to the first row past the context, which nothing reads.
    """
    import numpy as np

    count = len(tokens)
    positions = np.minimum(np.arange(first, first + size), context - 1)
    slots = np.where(np.arange(size) < count, positions, slots_for(context) - BLOCK)
    blocks = -(-(first + count) // BLOCK)
    padded = np.pad(np.array(tokens, np.int64), (0, size - count))
    lengths = np.array([first + count])
    totals = np.array([total or first + count])
    return Step(padded, positions, slots, np.arange(blocks)[None], lengths, totals)._asdict()  # type: ignore[arg-type]  arrays here, tensors when traced
