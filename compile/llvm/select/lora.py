"""Groups of a single operation with the LoRAs of a step's sequences, or of rows of experts."""

from __future__ import annotations

from math import prod

from bringup.compile.kernels.call import Operand
from bringup.compile.kernels.code.types import rows_of
from bringup.compile.kernels.select.attention_calls import step_of
from bringup.compile.kernels.select.tensors import argument_of, result_of
from bringup.compile.llvm.ir.machine import Machine
from bringup.compile.llvm.select.call import Call, call
from bringup.compile.llvm.select.sizes import FLOATS
from bringup.compile.schedule.graph.op_graph import Group, Node, OpGraph, View

# operation -> kernel, and the names of the multiplied input and of the factors
_NAMES = {
    "lora_shrink": ("lora_shrink", "x_Ni", "a_Sri"),
    "lora_expand": ("lora_expand", "h_Nr", "b_Sro"),
    "lora_lookup": ("lora_lookup", "rows_N", "a_Srv"),
    "expert_lora_shrink": ("lora_shrink", "x_BRi", "a_Seri"),
    "expert_lora_expand": ("lora_expand", "h_BRr", "b_Sero"),
}


def lora(graph: OpGraph, group: Group, machine: Machine) -> tuple[Call, ...] | None:
    """One call; None if the operation is not supported."""
    if len(group.nodes) != 1:
        return None
    node = group.nodes[0]
    if node.short == "slots_to_blocks":
        return _slots_to_blocks(graph, node)
    return _product(graph, node) if node.short in _NAMES else None


def _product(graph: OpGraph, node: Node) -> tuple[Call, ...] | None:
    kernel, name, of_factors = _NAMES[node.short]
    x, weight, view = argument_of(graph, node, name), argument_of(graph, node, of_factors), node.argument(name)
    out, factors = result_of(graph, node), _factors(graph, node)
    assert x is not None
    assert weight is not None
    assert isinstance(view, View)
    rows = (x.shape[0], 0) if kernel == "lora_lookup" else rows_of(view)
    given = ("int64",) if kernel == "lora_lookup" else FLOATS
    is_taken = weight.is_dense and x.strides[-1] == 1 and x.dtype in given and {weight.dtype, out.dtype} <= set(FLOATS)
    if factors is None or rows is None or not is_taken:
        return None
    how, slots = factors
    if how == "experts":
        slots = [*slots, weight.shape[1]]
    settings = {"x": x.dtype, "weight": weight.dtype, "out": out.dtype, "rows": how}
    sizes: list[Operand] = [x.place, rows[1], weight.place, out.place, rows[0], *weight.shape[-2:]]
    return (call(kernel, settings, [*sizes, *slots]),)


def _factors(graph: OpGraph, node: Node) -> tuple[str, list[Operand]] | None:
    """How the kernel finds the factors of a row, and the slots for that."""
    of_rows, expert = argument_of(graph, node, "slot_BR"), argument_of(graph, node, "expert_B")
    if of_rows is not None:
        assert expert is not None
        dense = of_rows.is_dense and expert.is_dense
        return ("experts", [of_rows.place, expert.place, of_rows.shape[1]]) if dense else None
    slots, step = argument_of(graph, node, "slots_B"), step_of(graph, node)
    assert slots is not None
    if not slots.is_dense:
        return None
    return ("decode" if step.decode else "prompts"), [slots.place, step.starts.place, step.sequences]


def _slots_to_blocks(graph: OpGraph, node: Node) -> tuple[Call, ...] | None:
    slot, row, out = argument_of(graph, node, "slot_N"), argument_of(graph, node, "row_NK"), result_of(graph, node)
    assert slot is not None
    assert row is not None
    if not row.is_dense or {slot.dtype, row.dtype} != {"int64"}:
        return None
    given: list[Operand] = [slot.place, slot.strides[0], row.place, out.place, prod(row.shape), row.shape[1]]
    return (call("slots_to_blocks", {}, [*given, prod(out.shape)]),)
