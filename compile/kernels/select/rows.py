"""Groups that work on whole rows (norms, softmax, routing): code from their nodes, some rows a program."""

from __future__ import annotations

from bringup.compile.kernels.call import KernelCall
from bringup.compile.kernels.code.formulas import FORMULAS
from bringup.compile.kernels.code.index import At, count
from bringup.compile.kernels.code.row_formulas import ROW_FORMULAS
from bringup.compile.kernels.code.types import power_of_two
from bringup.compile.kernels.code.writer import Code, NotTaken
from bringup.compile.kernels.select.elements import call_of, sinks
from bringup.compile.schedule.graph.op_graph import Group, Node, OpGraph

WIDEST = 16384  # of a row: a tile of it is in registers
TILE = 1024  # elements that programs of short rows have


def rows(graph: OpGraph, group: Group, capability: str) -> tuple[KernelCall, ...] | None:
    """One launch of `elements`: each program has all of some rows, every axis but the last as one."""
    if not any(node.short in ROW_FORMULAS for node in group.nodes):
        return None
    short = {name for node in group.nodes if _drops_axis(node) for name in node.outputs}
    shapes = [graph.buffers[name].shape for node in group.nodes for name in node.outputs if name not in short]
    shapes += [view.shape for node in group.nodes if node.short in ROW_FORMULAS for view in node.views[:1]]
    if any(not shape for shape in shapes):
        return None
    counts, widths = {count(shape[:-1]) for shape in shapes}, sorted({shape[-1] for shape in shapes})
    if len(counts) != 1 or power_of_two(widths[-1]) > WIDEST:
        return None
    (total,) = counts
    widest = power_of_two(widths[-1])
    each = max(1, min(power_of_two(total), TILE // widest))
    lanes = {width: f"c{width}" for width in widths}
    body = [f"row = pid * {each} + tl.arange(0, {each})[:, None]", f"live_row = row < {total}"]
    for width, lane in lanes.items():
        body.append(f"{lane} = tl.arange(0, {power_of_two(width)})[None, :]")
        body.append(f"live_{lane} = live_row & ({lane} < {width})")
    code = Code(graph, group, FORMULAS, {"row": "live_row", **{lane: f"live_{lane}" for lane in lanes.values()}}, lanes)
    try:
        for sink in sinks(graph, group):
            if sink.name in short:
                sink.write(code, code.unflat(At("row"), sink.shape), "live_row")
                continue
            lane = lanes[sink.shape[-1]]
            sink.write(code, (*code.unflat(At("row"), sink.shape[:-1]), At(lane)), f"live_{lane}")
    except (NotTaken, KeyError):
        return None
    warps = max(1, min(8, each * widest // 256))
    return (call_of(code, body + code.lines, -(-total // each), warps),)


def _drops_axis(node: Node) -> bool:
    """Whether it gives one number for a row, without an axis for it."""
    return node.short in ("sum", "mean", "amax") and not node.argument("keepdim")
