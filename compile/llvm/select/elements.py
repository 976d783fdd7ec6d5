"""Groups of element-wise operations, copies and gathers: one kernel writes all results that later groups read."""

from __future__ import annotations

from bringup.compile.kernels.call import Operand, Pointer
from bringup.compile.llvm.ir.formulas import FORMULAS
from bringup.compile.llvm.ir.machine import Machine
from bringup.compile.llvm.ir.one import ONE, WHOLE
from bringup.compile.llvm.ir.places import listed_of
from bringup.compile.llvm.select.call import Call, call
from bringup.compile.llvm.select.sizes import FLOATS
from bringup.compile.schedule.graph.op_graph import Group, Node, OpGraph, View

DTYPES = (*FLOATS, "float64", "int64", "int32", "int16", "int8", "uint8", "bool")
# Not supported on integers: torch converts these to a float dtype, which the node states.
OF_FLOATS = frozenset(ONE) - WHOLE - {"sign", "abs"} | {"gelu", "atan2"}
WHOLE_NUMBERS = ("int64", "int32")
OF_BITS = (("float32", "int32"), ("float64", "int64"))  # dtypes between which bits are reinterpreted
SHORT = 64  # the longest axis whose sum is unrolled


def elements(graph: OpGraph, group: Group, machine: Machine) -> tuple[Call, ...] | None:
    """One call; None if an operation or a dtype is not supported."""
    names = sorted(name for node in group.nodes for name in (*node.reads, *node.outputs))
    buffers = tuple(graph.buffers[name] for name in dict.fromkeys(names))
    if any(buffer.dtype not in DTYPES for buffer in buffers) or not all(_is_taken(graph, n) for n in group.nodes):
        return None
    results = tuple(sorted(group.outputs & graph.planned))
    memory = tuple(sorted(group.inputs | set(results)))
    settings = {"buffers": buffers, "nodes": group.nodes, "memory": memory, "results": results}
    given: list[Operand] = [Pointer(name) for name in memory]
    return (call("elements", settings, given),)


def _is_taken(graph: OpGraph, node: Node) -> bool:
    """Whether `ir.formulas` has a formula for the node."""
    if node.short not in FORMULAS or node.updates or len(node.outputs) != 1:
        return False
    is_float = "float" in graph.buffers[node.outputs[0]].dtype
    match node.short:
        case "pow":
            return isinstance(node.arguments[1], int) and node.arguments[1] >= 0 if not is_float else True
        case "div":
            return is_float or node.argument("rounding_mode") is not None
        case "index" | "index_select":
            listed = [view for view in listed_of(node) if view is not None]
            return bool(listed) and all(graph.buffers[view.buffer].dtype in WHOLE_NUMBERS for view in listed)
        case "view":
            dtypes = (graph.buffers[node.views[0].buffer].dtype, graph.buffers[node.outputs[0]].dtype)
            return tuple(sorted(dtypes)) in OF_BITS
        case "gather" | "constant_pad_nd":
            return 0 not in node.views[0].shape
        case "sum":
            view, axes = node.arguments[0], node.argument("dim")
            last = len(view.shape) - 1 if isinstance(view, View) else -1
            return isinstance(view, View) and axes in ((-1,), (last,)) and 1 <= view.shape[-1] <= SHORT
        case "round":
            return not node.argument("decimals")
        case "empty" | "empty_like" | "new_empty" | "full_like" | "full":
            return True
        case _:
            return is_float or node.short not in OF_FLOATS
