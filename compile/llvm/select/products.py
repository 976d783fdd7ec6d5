"""Groups of a single `linear`: `linear_rows` for few rows of activations, `linear_tiles` for more."""

from __future__ import annotations

from bringup.compile.kernels.call import Operand
from bringup.compile.kernels.code.types import rows_of
from bringup.compile.kernels.select.tensors import Tensor, argument_of, result_of
from bringup.compile.llvm.ir.machine import Machine
from bringup.compile.llvm.ir.pairs import adds_pairs
from bringup.compile.llvm.select.call import Call, call
from bringup.compile.llvm.select.sizes import BLOCK_ROWS, FEW_ROWS, FLOATS, TILE_VECTORS
from bringup.compile.schedule.graph.op_graph import Group, OpGraph, View

TILE_ROWS = 6  # the slot of `linear_tiles` with the number of rows
# From this size in bytes, rows of x do not stay in the L1 cache with a row of the weight. Then it is faster to read
# TOGETHER rows of the weight at a time; below, it is slower.
LARGE, TOGETHER = 24 << 10, 3
PANELS = 256 << 10  # bytes of panels that a thread keeps in its cache


def products(graph: OpGraph, group: Group, machine: Machine) -> tuple[Call, ...] | None:
    """One call, or none if there are no rows. None if the product is not supported."""
    if len(group.nodes) != 1 or group.nodes[0].short != "linear":
        return None
    node = group.nodes[0]
    x, weight, bias = (argument_of(graph, node, name) for name in ("x", "weight", "bias"))
    out, view = result_of(graph, node), node.argument("x")
    assert x is not None
    assert weight is not None
    assert isinstance(view, View)
    rows = rows_of(view)
    dtypes = {each.dtype for each in (x, weight, bias, out) if each is not None}
    unit = x.strides[-1] == weight.strides[-1] == 1 and (bias is None or bias.is_dense)
    if rows is None or not unit or not dtypes <= set(FLOATS):
        return None
    if rows[0] == 0:
        return ()
    return (product_call(x, *rows, weight, bias, out, machine),)


def product_call(
    x: Tensor, count: int, stride: int, weight: Tensor, bias: Tensor | None, out: Tensor, machine: Machine
) -> Call:
    """The call of a product with `count` rows of x, `stride` elements apart. Channels have a stride of 1."""
    columns, channels = weight.shape
    settings = {"x": x.dtype, "weight": weight.dtype, "bias": bias.dtype if bias else "", "out": out.dtype}
    given: list[Operand] = [x.place, stride, weight.place, weight.strides[0], bias.place if bias else 0, out.place]
    pairs = adds_pairs(machine, settings)
    wide = 0 if x.dtype == "float32" or pairs else channels  # elements per row that are converted to float32
    if count <= FEW_ROWS:
        is_large = count > 1 and count * channels * (2 if pairs else 4) >= LARGE and machine.registers >= 32
        rows = {"rows": count, "together": TOGETHER if is_large else 1}
        return call("linear_rows", settings | rows, [*given, columns, channels], 4 * wide * count)
    tile, panels, scratch = tiles_of(machine, count, -(-channels // 2) if pairs else channels, converts=bool(wide))
    return call("linear_tiles", settings | {"tile": tile}, [*given, count, columns, channels, panels], scratch)


def tiles_of(machine: Machine, count: int, channels: int, *, converts: bool) -> tuple[int, int, int]:
    """(rows of a tile, panels that are packed at a time, bytes of scratch memory) for `count` rows of x.

    `channels` counts channels, or pairs of these. `converts`: rows of x are converted to float32, in blocks.
    """
    tile = 8 if machine.registers >= 32 else 4
    panel = TILE_VECTORS * machine.lanes
    panels = max(1, min(8, PANELS // max(1, 4 * channels * panel)))
    rows = min(count, BLOCK_ROWS) if converts else 0
    return tile, panels, 4 * (panel + rows * channels + panels * panel * channels)
