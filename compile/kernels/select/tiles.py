"""Tile sizes of matrix products, from their sizes and dtype."""

from __future__ import annotations

from dataclasses import dataclass

from bringup.compile.kernels.code.types import power_of_two, size_of

PROCESSORS = 132  # multiprocessors of an H100 and an H200
FEW, MANY = 3000, 6000  # lanes; a vocabulary or a wide layer has many
LOADS = 8  # outstanding loads of weights of a thread
MOST_SUMS = 8 * 32 * 64  # maximum accumulators of a tile: 64 for each thread of eight warps
NARROWEST = 16  # minimum rows and lanes of a tile with matrix instructions
TALLEST = 128  # maximum rows of a tile
EXTRA = 32  # what a tile of `panel` costs besides its sums, in lanes: estimated, not measured
PANELS = {"sm_90": PROCESSORS, "sm_100": 148}  # multiprocessors (of a B200: 148), where tiles are fetched by TMA
SPECIALISED = frozenset({"sm_90"})  # those of PANELS that have `wgmma`, which `linear_specialised` multiplies with
RING, DEEPEST = 192 << 10, 8  # bytes and number of the stages of `linear_specialised`, at most


@dataclass(frozen=True, slots=True)
class Tiles:
    """Rows, lanes and channels of a tile, and the warps and stages of its kernel.

    `together`: the largest number of adjacent tiles that a product of one row prefetches, if a tile has all channels.
    """

    rows: int
    lanes: int
    channels: int
    warps: int
    stages: int = 1
    together: int = 1


def gemv(lanes: int, channels: int, dtype: str, accumulators: int, norm: bool) -> Tiles:
    """The tile of a product with one row. It is memory-bound, so the number of outstanding loads matters.

    Measured on an H200 (benchmarks/results/2026-11-24-tiles.md). After a norm, a row of up to 4096 channels of 16 bits
    is held in registers, so its statistics need no second read. Fewer programs start faster: if there are few lanes, a
    program computes several, each in a separate warp or in all warps.
    """
    vector = 16 // size_of(dtype)  # elements of a load
    warp = 32 * vector  # channels that a warp loads at a time
    whole, short, longest = power_of_two(channels), 4 * warp, 16 * warp
    few = norm and lanes < FEW
    if few and accumulators == 1 and channels <= short:
        return Tiles(1, 4, warp, 1, together=4)
    if few and accumulators == 2 and channels <= 2 * short:
        return Tiles(1, 4, max(warp, whole), 8)
    if norm or channels <= short:
        each = 4 if lanes >= MANY and accumulators == 1 else 2
        widest = max(32, min(whole, longest))
        # With more in float32, one accumulator and two warps, a thread spills on sm_86 and sm_89 with Triton 3.6.
        loads = 16 if accumulators == 2 or (lanes >= MANY and vector > 4) else LOADS
        return Tiles(1, each, widest, max(1, min(8, power_of_two(each * widest * accumulators // (warp * loads)))))
    if channels <= 3 * short:
        each = 16 if lanes >= 2000 and channels <= 2 * short else 8
        return Tiles(1, each, warp, each // 2 if channels <= 2 * short else 8, together=12)
    widest = min(whole // 2, longest)
    each = 2 if lanes >= 2000 else 1
    return Tiles(1, each, widest, 8 if widest >= 8 * warp else 4, together=4 if channels > longest else 1)


def tile(rows: int, lanes: int, channels: int, dtype: str, accumulators: int, share: int) -> Tiles:
    """The tile of a product with several rows, by matrix instructions; float32 by scalar products, in small tiles.

    The width of a tile is the largest that still gives each multiprocessor one program, or two if the weights are most
    of the bytes. A thread has 1 in `share` of the accumulators that it could have, because the epilogue needs registers
    too.
    """
    small = size_of(dtype) == 4
    height = max(NARROWEST, min(power_of_two(rows), 32 if small else TALLEST))
    width, across = (32 if small else 128) // accumulators, -(-rows // height)
    wanted = PROCESSORS if rows > 64 else 2 * PROCESSORS
    while width > NARROWEST and across * -(-lanes // width) < wanted:
        width //= 2
    most = MOST_SUMS // share
    if share > 1:
        height = min(height, 256 // share)
        width = min(width, most // (height * accumulators))
    deep = max(16, min(32 if small else 64, power_of_two(channels)))
    warps = 8 if height * width * accumulators >= most else 4
    return Tiles(height, width, deep, warps, 2 if small else 3)


def panel(rows: int, lanes: int, accumulators: int, processors: int) -> Tiles:
    """The tile of a product of more than `TALLEST` rows in 16 bits, whose operands the copy engine (TMA) fetches.

    The width is that with the shortest estimated time: the number of tiles that a program computes, times the lanes of
    a tile and what a tile costs besides. A thread has up to 128 accumulators, because no pointers of operands take
    registers. Shared memory holds three stages of the widest tile, and has space for results of an epilogue.
    """
    across, widest = -(-rows // TALLEST), 256 // accumulators

    def cost(width: int) -> int:
        return -(-across * -(-lanes // width) // processors) * (width * accumulators + EXTRA)

    width = min((widest >> step for step in range(8) if widest >> step >= NARROWEST), key=cost)
    sums = TALLEST * width * accumulators
    return Tiles(TALLEST, width, 64, 8 if sums >= MOST_SUMS else 4, 3 if sums > MOST_SUMS else 4)


def ring(sizes: Tiles, accumulators: int) -> int:
    """The stages of `linear_specialised`: the rest of the memory of a multiprocessor is for results of an epilogue."""
    stage = 2 * sizes.channels * (sizes.rows + sizes.lanes * accumulators)
    return min(DEEPEST, RING // stage)
