"""Groups of a single product with the LoRAs of a step's sequences."""

from __future__ import annotations

from bringup.compile.kernels.call import Operand
from bringup.compile.kernels.select.attention_calls import step_of
from bringup.compile.kernels.select.tensors import argument_of, result_of
from bringup.compile.llvm.ir.machine import Machine
from bringup.compile.llvm.select.call import Call, call
from bringup.compile.llvm.select.sizes import FLOATS
from bringup.compile.schedule.graph.op_graph import Group, OpGraph

_NAMES = {"lora_shrink": ("x_Ni", "a_Sri"), "lora_expand": ("h_Nr", "b_Sro")}


def lora(graph: OpGraph, group: Group, machine: Machine) -> tuple[Call, ...] | None:
    """One call."""
    if len(group.nodes) != 1 or group.nodes[0].short not in _NAMES:
        return None
    node = group.nodes[0]
    x, weight, slots = (argument_of(graph, node, name) for name in (*_NAMES[node.short], "slots_B"))
    step, out = step_of(graph, node), result_of(graph, node)
    assert x is not None
    assert weight is not None
    assert slots is not None
    dense = weight.is_dense and slots.is_dense and x.strides[1] == 1
    if not dense or not {x.dtype, weight.dtype, out.dtype} <= set(FLOATS):
        return None
    settings = {"x": x.dtype, "weight": weight.dtype, "out": out.dtype, "decode": step.decode}
    given: list[Operand] = [x.place, x.strides[0], weight.place, slots.place, step.starts.place, out.place]
    return (call(node.short, settings, [*given, x.shape[0], step.sequences, *weight.shape[1:]]),)
