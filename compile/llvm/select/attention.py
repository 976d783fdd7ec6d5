"""Groups of a single `attention`: one query per sequence (decode), or packed prompts (prefill)."""

from __future__ import annotations

from bringup.compile.kernels.call import Operand, Pointer
from bringup.compile.kernels.select.attention import number, whole_number
from bringup.compile.kernels.select.attention_calls import Step, step_of
from bringup.compile.kernels.select.tensors import Tensor, argument_of, result_of
from bringup.compile.llvm.ir.machine import Machine
from bringup.compile.llvm.select.call import SHARED, Call, call
from bringup.compile.llvm.select.sizes import (
    FLOATS,
    HEADS,
    KEYS,
    MOST_SPANS,
    QUERY_VECTORS,
    SPAN,
    SPAN_KEYS,
    TOGETHER,
    scratch_of_decode,
)
from bringup.compile.schedule.graph.op_graph import Group, OpGraph

NO_WINDOW = 1 << 40


def attention(graph: OpGraph, group: Group, machine: Machine) -> tuple[Call, ...] | None:
    """One call, or two if a sequence's keys may be divided into spans. None if the operation is not supported."""
    if len(group.nodes) != 1 or group.nodes[0].short != "attention":
        return None
    node = group.nodes[0]
    q, k, v = (argument_of(graph, node, name) for name in ("q_NHK", "k_SGK", "v_SGV"))
    sinks, slopes, chosen = (argument_of(graph, node, name) for name in ("sinks_H", "slopes_H", "selected_NL"))
    assert q is not None
    assert k is not None
    assert v is not None
    out, step = result_of(graph, node), step_of(graph, node)
    given = [each for each in (q, k, v, out, sinks, slopes) if each is not None]
    unit = all(each.strides[-1] == 1 for each in given)
    if not unit or not {each.dtype for each in given} <= set(FLOATS) or out.dtype != q.dtype:
        return None
    if chosen is not None and not chosen.is_dense:
        return None
    window, ring, softcap = whole_number(node, "window"), whole_number(node, "ring"), number(node, "softcap")
    settings = {
        **{"q": q.dtype, "k": k.dtype, "v": v.dtype, "rows": _rows(step, ring), "softcap": softcap is not None},
        **{"sinks": sinks.dtype if sinks else "", "slopes": slopes.dtype if slopes else ""},
        **{"chosen": chosen is not None, "chunked": node.argument("chunked") is True},
        **{"channels": q.shape[2], "values": v.shape[2]},
    }
    tokens, heads, _ = q.shape
    table = step.block_table
    arguments: list[Operand] = [
        *(q.place, q.strides[0], q.strides[1], k.place, k.strides[0], k.strides[1]),
        *(v.place, v.strides[0], v.strides[1], out.place),
        *(step.positions.place, step.starts.place, table.place, step.rows.place, table.shape[1]),
        *(ring or 1, window or NO_WINDOW, number(node, "scale") or 0.0, softcap or 1.0),
        *(_place(sinks), _place(slopes), heads, k.shape[1], step.sequences, _place(chosen)),
    ]
    keys = min(step.length, window or step.length)
    if step.decode:
        together = next(n for n in range(TOGETHER, 0, -1) if heads // k.shape[1] % n == 0)
        parts = heads // together
        while parts > 1 and scratch_of_decode(q.shape[2], v.shape[2], together, parts) > HEADS:
            parts -= 1
        size, spans, nbytes = _spans(keys, step.sequences, heads, v.shape[2])
        scratch = scratch_of_decode(q.shape[2], v.shape[2], together, parts) + (8 * min(keys, size) if chosen else 0)
        settings |= {"together": together, "parts": parts, "spans": spans > 1}
        if spans == 1:
            return (call("attention_decode", settings, arguments, scratch),)
        shared, merge = Pointer(SHARED), {"out": out.dtype, "values": v.shape[2], "chunked": settings["chunked"]}
        merged: list[Operand] = [shared, out.place, step.positions.place, window or NO_WINDOW, heads, step.sequences]
        return (
            call("attention_decode", settings, [*arguments, size, spans, shared], scratch, nbytes),
            call("attention_merge", merge, [*merged, size, spans], 4 * spans, nbytes),
        )
    width = QUERY_VECTORS * machine.lanes
    keys = min(step.length, keys + width)  # that one block of queries attends to, at most
    scratch = 4 * width * (q.shape[2] + v.shape[2] + 1 + KEYS) + 8 * (width + keys)
    return (call("attention_prefill", settings, [*arguments, tokens, keys], scratch),)


def _spans(keys: int, sequences: int, heads: int, values: int) -> tuple[int, int, int]:
    """(keys of a span, spans of a sequence of `keys` keys, bytes of the results of all spans)."""
    size = SPAN_KEYS
    while True:
        spans = -(-keys // size)
        nbytes = 4 * sequences * spans * heads * (values + SPAN)
        if spans == 1 or nbytes <= MOST_SPANS:
            return size, spans, nbytes
        size *= 2


def _place(tensor: Tensor | None) -> Operand:
    return tensor.place if tensor else 0


def _rows(step: Step, ring: int | None) -> str:
    """How a key's row in the cache is computed from its position; see `kernels.keys`."""
    if ring is not None:
        return "first ring" if step.contiguous else "ring"
    return "in order" if step.contiguous else "table"
