"""Selects the kernels that sort tokens by expert."""

from __future__ import annotations

from bringup.compile.kernels.call import KernelCall
from bringup.compile.kernels.code.index import count
from bringup.compile.kernels.code.types import POINTERS, kernel, pointer, power_of_two, rows_of
from bringup.compile.schedule.graph.op_graph import Group, Node, OpGraph, View, dense, whole

MOST_EXPERTS = 1024
TILE = 8192  # elements of a tile of choices by experts, or of rows by choices
# Maximum choices of a tile: one for each thread. With two, Triton 3.6 cannot compile their running sum; with more, LLVM
# packs the comparisons of a thread into bits, through local memory.
MOST_CHOICES = 256


def experts(graph: OpGraph, group: Group, capability: str) -> tuple[KernelCall, ...] | None:
    """One call of `rows_of_experts` or `to_blocks` for a group of that node only, if blocks have several rows."""
    if len(group.nodes) != 1:
        return None
    (node,) = group.nodes
    if node.short == "rows_of_experts" and node.argument("R") != 1:
        return _rows_of_experts(graph, node)
    if node.short == "to_blocks" and node.argument("blocks_rows") != 1:
        return _to_blocks(graph, node)
    return None


def _rows_of_experts(graph: OpGraph, node: Node) -> tuple[KernelCall, ...] | None:
    chosen, number, rows = (node.argument(key) for key in ("selected_NK", "experts", "R"))
    if not isinstance(chosen, View) or not isinstance(number, int) or not isinstance(rows, int):
        return None
    source = graph.buffers[chosen.buffer]
    if number > MOST_EXPERTS or chosen != whole(source):
        return None
    expert, row = (graph.buffers[name] for name in node.outputs)
    across = power_of_two(number)
    constants = {
        "F": count(chosen.shape), "E": number, "R": rows, "B": expert.shape[0], "PE": across,
        "CHUNK": max(2, min(power_of_two(count(chosen.shape)), MOST_CHOICES, TILE // across)),
        "BLOCKS": max(2, min(power_of_two(expert.shape[0]), TILE // across)),
    }  # fmt: skip
    buffers = (source, expert, row)
    specialised, arguments = kernel(
        "rows_of_experts", [(POINTERS[each.dtype], pointer(each)) for each in buffers], {**constants}, num_warps=8
    )
    return (KernelCall(kernel=specialised, grid=(1, 1, 1), arguments=arguments),)


def _to_blocks(graph: OpGraph, node: Node) -> tuple[KernelCall, ...] | None:
    x, row, rows = (node.argument(key) for key in ("x_Nm", "blocks_row_NK", "blocks_rows"))
    if not isinstance(x, View) or not isinstance(row, View) or not isinstance(rows, int):
        return None
    found = rows_of(x)
    if found is None or x.strides[-1] != 1 or row.strides != dense(row.shape):
        return None
    out = graph.buffers[node.outputs[0]]
    high, channels = power_of_two(rows), x.shape[-1]
    constants = {
        "F": count(row.shape), "SHARE": row.shape[1], "R": rows, "K": channels, "X_STRIDE": found[1], "PR": high,
        "CHUNK": max(2, min(power_of_two(count(row.shape)), TILE // high)),
        "BK": max(2, min(power_of_two(channels), TILE // high)),
    }  # fmt: skip
    source = graph.buffers[x.buffer]
    parameters = [
        (POINTERS[source.dtype], pointer(source, x.offset)),
        (POINTERS["int64"], pointer(graph.buffers[row.buffer], row.offset)),
        (POINTERS[out.dtype], pointer(out)),
    ]
    specialised, arguments = kernel("to_blocks", [*parameters], {**constants}, num_warps=4)
    return (KernelCall(kernel=specialised, grid=(out.shape[0], 1, 1), arguments=arguments),)
