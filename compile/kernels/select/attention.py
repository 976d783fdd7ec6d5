"""Selects the kernel for a group with a single `attention`."""

from __future__ import annotations

from bringup.compile.kernels.call import KernelCall
from bringup.compile.kernels.select.attention_calls import Attention, attention_call, step_of
from bringup.compile.kernels.select.tensors import argument_of, result_of
from bringup.compile.schedule.graph.op_graph import Group, Node, OpGraph


def attention(graph: OpGraph, group: Group, capability: str) -> tuple[KernelCall, ...] | None:
    """One call, or None for another group. The kernel of decode also combines the splits of its keys."""
    if len(group.nodes) != 1 or group.nodes[0].short != "attention":
        return None
    node = group.nodes[0]
    q, k, v = (argument_of(graph, node, name) for name in ("q_NHK", "k_SGK", "v_SGV"))
    assert q is not None
    assert k is not None
    assert v is not None
    found = Attention(
        q=q,
        k=k,
        v=v,
        out=result_of(graph, node),
        step=step_of(graph, node),
        scale=number(node, "scale") or 0.0,
        window=whole_number(node, "window"),
        chunked=node.argument("chunked") is True,
        ring=whole_number(node, "ring"),
        softcap=number(node, "softcap"),
        sinks=argument_of(graph, node, "sinks_H"),
        slopes=argument_of(graph, node, "slopes_H"),
        chosen=argument_of(graph, node, "selected_NL"),
    )
    return (attention_call(found, capability),) if found.is_taken(capability) else None


def number(node: Node, name: str) -> float | None:
    """A setting of a node as a float; None if it is not a number."""
    value = node.argument(name)
    return float(value) if isinstance(value, float | int) else None


def whole_number(node: Node, name: str) -> int | None:
    """A setting of a node that is an integer, otherwise None."""
    value = node.argument(name)
    return value if isinstance(value, int) else None
