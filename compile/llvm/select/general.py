"""Groups of a single operation without a faster kernel: `fold`, `scan`, `sort` and `put`, for any shape and dtype."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from bringup.compile.kernels.call import Operand, Pointer
from bringup.compile.llvm.ir.machine import Machine
from bringup.compile.llvm.select.call import Call, call
from bringup.compile.llvm.select.elements import DTYPES, WHOLE_NUMBERS
from bringup.compile.schedule.graph.op_graph import Argument, Group, Node, OpGraph, View, whole

_REDUCED = ("sum", "mean", "prod", "any", "all", "amax", "amin", "max", "min", "argmax", "argmin", "var", "var_mean")
_EMPTY = ("sum", "prod", "any", "all", "mean", "var", "var_mean")  # reductions that are defined without terms


def general(graph: OpGraph, group: Group, machine: Machine) -> tuple[Call, ...] | None:
    """One call; two for a write into a copy, of which the first copies. None if the operation is not supported."""
    if len(group.nodes) != 1 or group.nodes[0].short not in _SELECTORS:
        return None
    (node,) = group.nodes
    names = sorted({*node.reads, *node.outputs})
    if any(graph.buffers[name].dtype not in DTYPES for name in names):
        return None
    return _SELECTORS[node.short](graph, node, names)


def _settings(graph: OpGraph, node: Node, names: list[str]) -> dict[str, object]:
    return {"buffers": tuple(graph.buffers[name] for name in names), "node": node, "memory": tuple(names)}


def _call(stem: str, graph: OpGraph, node: Node, names: list[str], scratch: int = 0, **more: object) -> Call:
    given: list[Operand] = [Pointer(name) for name in names]
    return call(stem, _settings(graph, node, names) | more, given, scratch)


def _reduction(graph: OpGraph, node: Node, names: list[str]) -> tuple[Call, ...] | None:
    view = node.arguments[0]
    assert isinstance(view, View)
    is_pair = node.op in ("aten.max.other", "aten.min.other")
    if is_pair or (0 in view.shape and node.short not in _EMPTY) or node.op.endswith((".names_dim", ".dim_Dimname")):
        return None
    return (_call("fold", graph, node, names),)


def _product(graph: OpGraph, node: Node, names: list[str]) -> tuple[Call, ...] | None:
    return (_call("fold", graph, node, names),)


def _convolution(graph: OpGraph, node: Node, names: list[str]) -> tuple[Call, ...] | None:
    is_float = "float" in graph.buffers[node.outputs[0]].dtype
    x = node.arguments[0]
    assert isinstance(x, View)
    if node.argument("transposed") or not is_float or 0 in x.shape:
        return None
    return (_call("fold", graph, node, names),)


def _scan(graph: OpGraph, node: Node, names: list[str]) -> tuple[Call, ...] | None:
    return (_call("scan", graph, node, names),)


def _sort(graph: OpGraph, node: Node, names: list[str]) -> tuple[Call, ...] | None:
    view = node.arguments[0]
    assert isinstance(view, View)
    axis, count = node.argument("dim"), node.argument("k")
    axis = (-1 if not isinstance(axis, int) else axis) % max(len(view.shape), 1)
    size = view.shape[axis] if view.shape else 1
    first, last, descending = 0, size, bool(node.argument("descending"))
    if node.short == "topk":
        assert isinstance(count, int)
        last, descending = count, bool(node.argument("largest"))
    if node.short == "kthvalue":
        assert isinstance(count, int)
        first, last = count - 1, count
    more = {"view": view, "axis": axis, "descending": descending, "first": first, "last": last}
    return (_call("sort", graph, node, names, 24 * size, **more),)


def _put(graph: OpGraph, node: Node, names: list[str]) -> tuple[Call, ...] | None:
    """A copy, then the writes into it; if the target is a state, only the writes."""
    short = node.short.removesuffix("_")
    listed = node.argument("indices")
    indices = (node.argument("index"), *(listed if isinstance(listed, tuple) else ()))
    if not all(_counts(graph, each) for each in indices if each is not None):
        return None
    rule = _rule(short, node)
    if rule is None:
        return None
    view = node.arguments[0]
    assert isinstance(view, View)
    if node.updates:
        return (_call("put", graph, node, names, target=view, rule=rule, wide=None),)
    (name,) = node.outputs
    target = whole(graph.buffers[name])
    copy = Node(op="aten.clone.default", names=("self", "memory_format"), arguments=(view, None), outputs=node.outputs)
    own = sorted({view.buffer, name})
    buffers = tuple(graph.buffers[each] for each in own)
    settings = {"buffers": buffers, "nodes": (copy,), "memory": tuple(own), "results": (name,)}
    first = call("elements", settings, [Pointer(each) for each in own])
    if short == "as_strided_scatter":
        target = _part(node, name)
    wide = _wide_axis(node, short, target, graph.buffers[name].dtype)
    scratch = 0 if wide is None else 4 * target.shape[wide]
    return first, _call("put", graph, node, names, scratch, target=target, rule=rule, wide=wide)


def _wide_axis(node: Node, short: str, target: View, dtype: str) -> int | None:
    """The axis along which 16-bit elements are combined in float32: that of `scatter_reduce`; else None."""
    axis = node.argument("dim")
    if short != "scatter_reduce" or dtype not in ("float16", "bfloat16") or not target.shape:
        return None
    return axis % len(target.shape) if isinstance(axis, int) else None


def _part(node: Node, name: str) -> View:
    """The view of a result that `as_strided_scatter` writes."""
    shape, strides, offset = (node.argument(key) for key in ("size", "stride", "storage_offset"))
    assert isinstance(shape, tuple)
    assert isinstance(strides, tuple)
    shapes = [tuple(each for each in listed if isinstance(each, int)) for listed in (shape, strides)]
    return View(name, shapes[0], shapes[1], offset if isinstance(offset, int) else 0)


def _rule(short: str, node: Node) -> str | None:
    """How a written element is combined with the stored one; None if the rule is not supported."""
    if short == "scatter_add":
        return "add"
    if short == "index_put":
        return "add" if node.argument("accumulate") else ""
    if short == "scatter_reduce" and not node.argument("include_self"):
        return None
    given = node.argument("reduce")
    rule = given if isinstance(given, str) else ""
    return rule if rule in ("", "add", "multiply", "sum", "prod", "amax", "amin") else None


def _counts(graph: OpGraph, value: Argument) -> bool:
    return isinstance(value, View) and graph.buffers[value.buffer].dtype in WHOLE_NUMBERS


_PUTS = ("scatter", "scatter_add", "scatter_reduce", "index_put", "as_strided_scatter")
_SELECTORS: Mapping[str, Callable[[OpGraph, Node, list[str]], tuple[Call, ...] | None]] = {
    **dict.fromkeys(_REDUCED, _reduction),
    **dict.fromkeys(("mm", "bmm", "dot", "linear"), _product),
    **dict.fromkeys(("cumsum", "cumprod", "cummax", "cummin"), _scan),
    **dict.fromkeys(("sort", "topk", "kthvalue"), _sort),
    **dict.fromkeys((*_PUTS, "index_put_", "scatter_", "scatter_add_", "copy_"), _put),
    "convolution": _convolution,
}
