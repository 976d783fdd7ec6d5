"""Copies between two strided views of one shape; a transpose in tiles that fit a processor's caches.

The inner loop of a transpose reads one element of many rows. Rows whose distance is a power of two share a few sets of
the cache, so a tile is first copied to memory whose rows are a little longer (padding against conflict misses: Lam,
Rothberg and Wolf, The cache performance of blocked algorithms, ASPLOS 1991, section 4). Tiles follow the target's
rows: new memory is zeroed on its first write, and is then written again while it is in a cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import TYPE_CHECKING, Any, Literal

from bringup.adapters.apply.compiled_transpose import transpose

if TYPE_CHECKING:
    import numpy as np

# Size along the target in elements, and along the source in bytes: the cache lines of a column take 16 KiB, half of an
# L1 cache, and a tile takes 256 KiB, half of a small L2 cache.
ROWS, WIDTH = 256, 1024
PADDING = 64  # bytes: a cache line
LEAST = 64  # shorter axes are copied without tiles
Casting = Literal["same_kind", "unsafe"]


def strided_copy(target: np.ndarray, source: np.ndarray, casting: Casting) -> None:
    """`np.copyto(target, source)`, for views with any strides that do not overlap."""
    import numpy as np

    across, along = _unit(source), _unit(target)
    if across is None or along is None or across == along:
        np.copyto(target, source, casting=casting)
        return
    others = [axis for axis in range(source.ndim) if axis not in (across, along)]
    order = (*others, along, across)
    target, source = target.transpose(order), source.transpose(order)
    rows, columns = min(ROWS, source.shape[-2]), min(WIDTH // source.itemsize, source.shape[-1])
    padded = np.empty((rows, columns + PADDING // source.itemsize), source.dtype)
    for index in product(*map(range, source.shape[:-2])):
        if not transpose(target[index], source[index]):
            _transpose(target[index], source[index], padded[:, :columns], casting)


def _transpose(target: np.ndarray, source: np.ndarray, tile: np.ndarray, casting: Casting) -> None:
    """Copies arrays of two axes, tile by tile."""
    import numpy as np

    (rows, columns), (height, width) = source.shape, tile.shape
    for column in range(0, columns, width):
        for row in range(0, rows, height):
            here: tuple[Any, ...] = (slice(row, row + height), slice(column, column + width))
            piece = source[here]
            part = tile[: piece.shape[0], : piece.shape[1]]
            np.copyto(part, piece)
            np.copyto(target[here].T, part.T, casting=casting)


def _unit(array: np.ndarray) -> int | None:
    """The long axis along which elements are adjacent."""
    return _first([axis for axis, (size, stride) in enumerate(zip(array.shape, array.strides, strict=True))
                   if stride == array.itemsize and size >= LEAST])  # fmt: skip


def _first(axes: Sequence[int]) -> int | None:
    return axes[0] if axes else None
