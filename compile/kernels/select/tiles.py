"""How large the tiles of a product are: one table, by its sizes and dtype."""

from __future__ import annotations

from dataclasses import dataclass

from bringup.compile.kernels.code.types import power_of_two, size_of

PROCESSORS = 132  # of an H100 and an H200
NARROWEST = 16  # rows and lanes of a tile of matrix instructions, at least


@dataclass(frozen=True, slots=True)
class Tiles:
    """Rows, lanes and channels of a tile, and the warps and stages of its kernel."""

    rows: int
    lanes: int
    channels: int
    warps: int
    stages: int = 1


def gemv(lanes: int, channels: int, dtype: str, accumulators: int, head: int | None) -> Tiles:
    """Of one row. 16 bytes a load; two programs a processor or more, and no more weights in flight than registers.

    `head`: the lanes that a tile has to have.
    """
    vector = 16 // size_of(dtype)
    widest = max(32, min(power_of_two(channels), 128 * vector))
    warps = 4 if widest * 8 >= 128 * vector else 1
    most = warps * 32 * 8 * vector  # 8 loads of each thread
    each = head or 16
    while not head and each > 2 and (lanes < each * 2 * PROCESSORS or each * widest * accumulators > most):
        each //= 2
    while widest > 32 and each * widest * accumulators > most:
        widest //= 2
    return Tiles(1, each, widest, warps)


def tile(rows: int, lanes: int, channels: int, dtype: str, accumulators: int, head: int | None) -> Tiles:
    """Of several rows, by matrix instructions; float32 by products of single numbers, in small tiles.

    As wide as leaves each processor a program, or two where the weights are most of the bytes.
    """
    small = size_of(dtype) == 4
    height = max(NARROWEST, min(power_of_two(rows), 32 if small else 128))
    width, across = (32 if small else 128) // accumulators, -(-rows // height)
    wanted = PROCESSORS if rows > 64 else 2 * PROCESSORS
    while width > NARROWEST and across * -(-lanes // width) < wanted:
        width //= 2
    if head:  # whole heads, with the registers that their norm needs
        width, height = head, max(NARROWEST, min(height, (1024 if small else 2048) // head))
    deep = max(16, min(32 if small else 64, power_of_two(channels)))
    warps = 8 if height * width * accumulators >= 128 * 128 else 4
    return Tiles(height, width, deep, warps, 2 if small else 3)
