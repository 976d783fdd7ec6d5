"""The arguments of a step, for one sequence whose cache rows lie in order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bringup.graphs.graph import Step
from bringup.graphs.ops.attention import BLOCK

if TYPE_CHECKING:
    import numpy as np


def slots_for(context: int) -> int:
    """Cache rows for `context` tokens: whole blocks, and one block more for padding to be written to."""
    return (-(-context // BLOCK) + 1) * BLOCK


def make_step(tokens: list[int], first: int, size: int, context: int) -> dict[str, np.ndarray]:
    """`tokens` at positions from `first` on, padded to `size`: the arrays of `Step`, by name.

    Padding stands at the last position and is written to the first row past the context, which nothing reads.
    """
    import numpy as np

    count = len(tokens)
    positions = np.minimum(np.arange(first, first + size), context - 1)
    slots = np.where(np.arange(size) < count, positions, slots_for(context) - BLOCK)
    blocks = -(-(first + count) // BLOCK)
    padded = np.pad(np.array(tokens, np.int64), (0, size - count))
    return Step(padded, positions, slots, np.arange(blocks)[None], np.array([first + count]))._asdict()  # type: ignore[arg-type]  arrays here, tensors when traced
