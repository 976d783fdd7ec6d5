# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""x · weightᵀ + bias of many rows and a packed weight, which is converted to float32 once for each panel of tiles.

B blocks of M rows of x, each with the matrix of an expert · N rows of a matrix · K channels
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bringup.compile.llvm.ir.dtypes import I64
from bringup.compile.llvm.ir.emitter import Emitter, Value
from bringup.compile.llvm.kernels.linear_tiles import tiles
from bringup.compile.llvm.kernels.quant.rows import SLOTS, Blocks
from bringup.compile.llvm.kernels.quant.weight import Weight


def quant_tiles(e: Emitter, settings: Mapping[str, Any]) -> None:
    """Slots as those of `quant_rows`, then the panels of scratch memory, which is as in `linear_tiles`."""
    blocks, stored = Blocks(e, settings), settings["weight"]
    weight = Weight(e, stored, SLOTS)
    most = e.slot(SLOTS + stored.slots, I64)
    last = e.b.sub(blocks.columns, I64(1))

    def block(x: Value, bias: Value, out: Value, matrix: Value) -> None:
        own = weight.matrix(matrix)

        def numbers(row: Value, k: Value, lanes: int) -> Value:
            return own.numbers(e.minimum(row, last), k, lanes)

        sizes = (blocks.x_stride, blocks.rows, blocks.columns, blocks.channels, most)
        tiles(e, settings, numbers, (x, bias, out), sizes)

    blocks.each(block)
    e.finish()
