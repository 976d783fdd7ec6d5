"""Groups of a single batched product: `bmm`, and `expert_linear`, in which a batch is a block of rows of one expert."""

from __future__ import annotations

from dataclasses import replace

from bringup.compile.kernels.call import Operand
from bringup.compile.kernels.code.types import size_of
from bringup.compile.kernels.select.tensors import Tensor, argument_of, result_of, tensor_of
from bringup.compile.llvm.ir.machine import Machine
from bringup.compile.llvm.select.call import Call, call
from bringup.compile.llvm.select.products import TILE_ROWS, product_call
from bringup.compile.llvm.select.sizes import FLOATS
from bringup.compile.schedule.graph.op_graph import Group, Node, OpGraph, whole

SLOTS = {"x": 0, "weight": 2, "bias": 4, "out": 5}  # of a product's call: x and weight may be one tensor
ALIGNMENT = 64  # bytes: alignment of a call's own scratch memory, which follows that of the kernel that it calls


def batches(graph: OpGraph, group: Group, machine: Machine) -> tuple[Call, ...] | None:
    """One call; None if the operation is not supported."""
    if len(group.nodes) != 1:
        return None
    node = group.nodes[0]
    if node.short == "bmm":
        return _bmm(graph, node, machine)
    return _experts(graph, group, node, machine) if node.short == "expert_linear" else None


def _bmm(graph: OpGraph, node: Node, machine: Machine) -> tuple[Call, ...] | None:
    x, matrices = (argument_of(graph, node, name) for name in ("self", "mat2"))
    out = result_of(graph, node)
    assert x is not None
    assert matrices is not None
    if not {x.dtype, matrices.dtype, out.dtype} <= set(FLOATS):
        return None
    count, rows, channels = x.shape
    if x.strides[2] == matrices.strides[1] == 1 and rows:
        transposed = replace(matrices, shape=(matrices.shape[2], channels), strides=(matrices.strides[2], 1))
        inner = product_call(x, rows, x.strides[1], transposed, None, out, machine)
        moved = _moved({"x": (x, x.strides[0]), "weight": (matrices, matrices.strides[0]),
                               "out": (out, rows * out.shape[2])})  # fmt: skip
        return (_batched(inner, moved, [count], experts=False, rows=None),)
    if matrices.strides[2] != 1:
        return None
    settings = {"x": x.dtype, "matrices": matrices.dtype, "out": out.dtype}
    given: list[Operand] = [x.place, *x.strides, matrices.place, *matrices.strides[:2], out.place]
    return (call("matmul", settings, [*given, count, rows, channels, out.shape[2]]),)


def _experts(graph: OpGraph, group: Group, node: Node, machine: Machine) -> tuple[Call, ...] | None:
    names = ("x_BRi", "weight_eoi", "bias_eo", "expert_B")
    x, weight, bias, expert = (argument_of(graph, node, name) for name in names)
    out = result_of(graph, node)
    assert x is not None
    assert weight is not None
    assert expert is not None
    unit = x.strides[2] == weight.strides[2] == 1 and expert.is_dense and (bias is None or bias.strides[1] == 1)
    dtypes = {each.dtype for each in (x, weight, bias, out) if each is not None}
    if not unit or not dtypes <= set(FLOATS):
        return None
    blocks, height, _ = x.shape
    one = replace(weight, shape=weight.shape[1:], strides=weight.strides[1:])
    inner = product_call(x, height, x.strides[1], one, bias, out, machine)
    places = {"x": (x, x.strides[0]), "weight": (weight, weight.strides[0]), "out": (out, height * weight.shape[1])}
    moved = _moved(places | ({"bias": (bias, bias.strides[0])} if bias else {}))
    rest: list[Operand] = [blocks, expert.place]
    row = _row_of_choices(graph, group, node) if height > 1 else None
    if row is None:
        return (_batched(inner, moved, rest, experts=True, rows=None),)
    own = -(-inner.scratch // ALIGNMENT) * ALIGNMENT
    tiled = inner.kernel.stem == "linear_tiles"
    rest += [row.place, row.shape[0] * row.shape[1], height, own]
    found = _batched(inner, moved, rest, experts=True, rows=TILE_ROWS if tiled else -1)
    return (replace(found, scratch=own + 8 * blocks),)


def _row_of_choices(graph: OpGraph, group: Group, node: Node) -> Tensor | None:
    """The row of each choice, if this function assigns the blocks and a later group reads the rows; else None."""
    expert = argument_of(graph, node, "expert_B")
    assert expert is not None
    for each in graph.nodes():
        if each.short == "rows_of_experts" and each.outputs[0] == expert.place.buffer:
            row = graph.buffers[each.outputs[1]]
            is_read_later = max(graph.readers.get(row.name, [-1])) > graph.groups.index(group)
            return tensor_of(graph, whole(row)) if is_read_later else None
    return None


Moved = tuple[tuple[tuple[str, int], ...], list[Operand]]


def _moved(places: dict[str, tuple[Tensor, int]]) -> Moved:
    """The slots of a call whose addresses advance with the batch, and by how many bytes per batch."""
    slots = [(name, SLOTS[name]) for name in places]
    return tuple(slots), [stride * size_of(tensor.dtype) for tensor, stride in places.values()]


def _batched(inner: Call, moved: Moved, rest: list[Operand], *, experts: bool, rows: int | None) -> Call:
    slots, steps = moved
    settings: dict[str, object] = {
        **{"inner": inner.kernel, "count": len(inner.arguments), "moved": slots, "experts": experts, "rows": rows},
    }
    return call("batch_linear", settings, [*inner.arguments, *steps, *rest], inner.scratch)
