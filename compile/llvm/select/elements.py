"""Groups of element-wise operations, copies and look-ups: one kernel writes all that a group leaves in memory."""

from __future__ import annotations

from bringup.compile.kernels.call import Operand, Pointer
from bringup.compile.llvm.ir.machine import Machine
from bringup.compile.llvm.select.call import Call, call
from bringup.compile.llvm.select.sizes import FLOATS
from bringup.compile.schedule.graph.op_graph import Argument, Group, Node, OpGraph, View

DTYPES = (*FLOATS, "int64", "int32", "int16", "int8", "uint8", "bool")
OF_FLOATS = frozenset({"exp", "tanh", "sigmoid", "silu", "gelu", "gelu_tanh", "sqrt", "rsqrt", "relu", "div", "pow"})
PLAIN = OF_FLOATS | frozenset(
    {
        *("gt", "ge", "lt", "le", "eq", "ne", "bitwise_and", "bitwise_or", "bitwise_not"),
        *(
            "logical_and",
            "logical_or",
            "logical_not",
            "neg",
            "abs",
            "add",
            "sub",
            "mul",
            "remainder",
            "maximum",
            "minimum",
            "clamp",
        ),
        *("where", "to", "clone", "_to_copy", "arange", "full", "cat", "index", "index_select", "sum"),
    }
)
POWERS = (2, 3, 0.5, -0.5)
SHORT = 64  # numbers of an axis, at most, whose sum is written out


def elements(graph: OpGraph, group: Group, machine: Machine) -> tuple[Call, ...] | None:
    """One call."""
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
    """Whether there is a formula for it; see `ir.formulas`."""
    if node.short not in PLAIN or node.updates or len(node.outputs) != 1:
        return False
    is_float = "float" in graph.buffers[node.outputs[0]].dtype
    match node.short:
        case "div":
            return is_float and node.argument("rounding_mode") is None
        case "pow":
            return is_float and node.arguments[1] in POWERS
        case "remainder":
            return not is_float
        case "bitwise_not" | "logical_not" | "logical_and" | "logical_or":
            return graph.buffers[node.outputs[0]].dtype == "bool" and _are_bools(graph, node)
        case "index":
            listed = node.argument("indices")
            given = [each for each in listed if each is not None] if isinstance(listed, tuple) else []
            return len(given) == 1 and _counts(graph, given[0])
        case "index_select":
            return _counts(graph, node.argument("index"))
        case "sum":
            view, axes = node.arguments[0], node.argument("dim")
            last = len(view.shape) - 1 if isinstance(view, View) else -1
            return isinstance(view, View) and axes in ((-1,), (last,)) and 1 <= view.shape[-1] <= SHORT
        case "arange":
            return all(isinstance(node.argument(name) or 0, int) for name in ("start", "step"))
        case _:
            return is_float or node.short not in OF_FLOATS


def _are_bools(graph: OpGraph, node: Node) -> bool:
    return all(graph.buffers[view.buffer].dtype == "bool" for view in node.views)


def _counts(graph: OpGraph, value: Argument) -> bool:
    """Whether it is a tensor of whole numbers."""
    return isinstance(value, View) and graph.buffers[value.buffer].dtype in ("int64", "int32")
