"""Selects three kernels for a `latent_attention`, in the absorbed form (`graphs.ops.latent_attention.absorbed`).

Queries are multiplied by the matrices of keys. Attention uses the rows of the cache as keys and values of a single
head. Its result is multiplied by the matrices of values.
"""

from __future__ import annotations

from bringup.compile.kernels.call import KernelCall
from bringup.compile.kernels.code.types import power_of_two, size_of
from bringup.compile.kernels.select.attention import number
from bringup.compile.kernels.select.attention_calls import NARROW, WIDE, Attention, attention_call, step_of
from bringup.compile.kernels.select.tensors import Tensor, argument_of, call_of, dense_tensor, result_of, workspace
from bringup.compile.schedule.graph.op_graph import Group, OpGraph

ROWS = 16  # rows of a tile of `head_product`


def latent_attention(graph: OpGraph, group: Group, capability: str) -> tuple[KernelCall, ...] | None:
    """Three calls: product, attention, product; or None. Intermediates are in scratch, in the dtype of the queries."""
    if len(group.nodes) != 1 or group.nodes[0].short != "latent_attention":
        return None
    node = group.nodes[0]
    names = ("q_NHn", "rows_S1r", "to_keys_xc", "to_values_yc")
    found = [tensor for name in names if (tensor := argument_of(graph, node, name)) is not None]
    (q, rows, to_keys, to_values), rotated = found, argument_of(graph, node, "q_NHp")
    if q.dtype not in (WIDE, *NARROW) or any(each and each.strides[-1] != 1 for each in (*found, rotated)):
        return None
    (tokens, heads, _), channels = q.shape, to_keys.shape[1]
    size = size_of(q.dtype)
    width = channels + (rotated.shape[2] if rotated else 0)
    places, end = workspace([tokens * heads * width * size, tokens * heads * channels * size])
    absorbed = dense_tensor(places[0], q.dtype, (tokens, heads, width))
    mixed = dense_tensor(places[1], q.dtype, (tokens, heads, channels))
    attention = Attention(
        q=absorbed,
        k=rows,
        v=rows.columns(0, channels),
        out=mixed,
        step=step_of(graph, node),
        scale=number(node, "scale") or 0.0,
        chosen=argument_of(graph, node, "selected_NL"),
    )
    if not attention.is_taken(capability):
        return None
    return (
        head_product(q, to_keys, absorbed, rotated, transposed=False, scratch=end),
        attention_call(attention, capability, end),
        head_product(mixed, to_values, result_of(graph, node), None, transposed=True, scratch=end),
    )


def head_product(
    x: Tensor, matrices: Tensor, out: Tensor, tail: Tensor | None, *, transposed: bool, scratch: int
) -> KernelCall:
    """A call of `head_product`: `x` [N, H, I] by matrices [H·I, O], or [H·O, I] if `transposed`. `out`: [N, H, O + T].

    `tail` [N, H, T] is copied to the last channels of `out`. `scratch`: bytes of scratch memory in use.
    """
    (tokens, heads, inner), (rows, columns) = x.shape, matrices.shape
    outer = rows // heads if transposed else columns
    stride = matrices.strides[0]
    inner_stride, outer_stride = (1, stride) if transposed else (stride, 1)
    wide = x.dtype == WIDE or matrices.dtype != x.dtype
    block = max(16, min(32 if wide else 64, power_of_two(inner)))
    tile = max(16, min(64, power_of_two(outer)))
    count = ROWS if not wide else min(ROWS, power_of_two(tokens))
    tail_row, tail_head, size = (0, 0, 0) if tail is None else (*tail.strides[:2], tail.shape[2])
    constants = {
        **{"N": tokens, "I": inner, "O": outer, "T": size, "TAIL": power_of_two(max(1, size))},
        **{"X_ROW": x.strides[0], "X_HEAD": x.strides[1], "OUT_ROW": out.strides[0], "OUT_HEAD": out.strides[1]},
        **{"W_HEAD": rows // heads * stride, "W_IN": inner_stride, "W_OUT": outer_stride},
        **{"TAIL_ROW": tail_row, "TAIL_HEAD": tail_head},
        **{"ROWS": count, "COLUMNS": tile, "BLOCK": block, "WIDE": wide},
    }
    grid = (-(-outer // tile), heads, -(-tokens // count))
    parameters = {"x_NHI": x, "w_HIO": matrices, "tail_NHT": tail, "out_NHO": out}
    return call_of("head_product", parameters, constants, grid, warps=4, stages=2, scratch=scratch)
