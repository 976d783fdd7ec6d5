# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false
"""Loads channels into vectors. bfloat16 is loaded as even and odd elements, which needs no shuffle."""

from __future__ import annotations

from dataclasses import dataclass

from llvmlite import ir

from bringup.compile.llvm.ir.dtypes import I64
from bringup.compile.llvm.ir.emitter import Emitter, Value
from bringup.compile.llvm.ir.vectors import parts_of, shuffled


@dataclass(frozen=True, slots=True)
class Block:
    """Consecutive channels in one vector, or in two: the even and the odd channels.

    `starts` are the offsets, in elements, of the vectors when they are in order.
    """

    starts: tuple[int, ...]
    lanes: int

    def load(self, e: Emitter, place: Value, dtype: str) -> list[Value]:
        """The block's vectors, as float32, of channels that begin at the address `place`."""
        start = I64(self.starts[0])
        if len(self.starts) == 1:
            return [e.load(place, dtype, start, self.lanes)]
        return list(e.load_pairs(place, start, self.lanes))

    def in_order(self, b: ir.IRBuilder, vectors: list[Value]) -> list[Value]:
        """The same number of vectors, with the channels in order."""
        if len(vectors) == 1:
            return vectors
        size = self.lanes
        lanes = [number for lane in range(size) for number in (lane, size + lane)]
        return [shuffled(b, vectors[0], vectors[1], half) for half in (lanes[:size], lanes[size:])]


def blocks_of(size: int, dtype: str, lanes: int) -> list[Block]:
    """The blocks of `size` channels. `lanes` is the size of a vector."""
    whole = size - size % (2 * lanes) if dtype == "bfloat16" else 0
    paired = [Block((start, start + lanes), lanes) for start in range(0, whole, 2 * lanes)]
    return paired + [Block((whole + start,), width) for start, width in parts_of(size - whole, lanes)]
