"""Selects the kernel for a `gated_delta_rule`."""

from __future__ import annotations

from bringup.compile.kernels.call import Constant, KernelCall
from bringup.compile.kernels.code.types import power_of_two
from bringup.compile.kernels.select.attention_calls import NARROW, WIDE, step_of
from bringup.compile.kernels.select.tensors import Parameter, argument_of, call_of, result_of
from bringup.compile.schedule.graph.op_graph import Group, OpGraph
from bringup.graphs.ops.recurrent.delta_rule import EPS

# Columns of a state in the registers of a warp, which so needs no barrier for sums over its rows: 8 of 128 rows are 32
# registers of a lane.
COLUMNS = 8
MOST_KEYS = 256  # 64 registers of a lane


def delta_rule(graph: OpGraph, group: Group, capability: str) -> tuple[KernelCall, ...] | None:
    """One call; None for another group."""
    (node, *others) = group.nodes
    if others or node.short != "gated_delta_rule":
        return None
    names = ("q_NGK", "k_NGK", "v_NGRV", "decay_NH", "beta_NH", "state_SHKV")
    found = [argument_of(graph, node, name) for name in names]
    q, k, v, decay, beta, state = [tensor for tensor in found if tensor is not None]
    step, out = step_of(graph, node), result_of(graph, node)
    of_tokens = (q, k, v, decay, beta)
    unit = all(each.strides[-1] == 1 for each in of_tokens) and state.is_dense and state.dtype == WIDE
    if not unit or not {each.dtype for each in of_tokens} <= {WIDE, *NARROW} or q.shape[2] > MOST_KEYS:
        return None
    tokens, (_, heads, keys, values) = q.shape[0], state.shape
    parameters: dict[str, Parameter] = {
        **dict(zip(names, found, strict=True)),
        **{"starts": step.starts, "rows": step.rows, "lengths": step.lengths, "out_NHV": out},
    }
    constants: dict[str, Constant] = {
        **{"N": tokens, "B": step.sequences, "H": heads, "R": v.shape[2], "K": keys, "V": values},
        **{"Q_ROW": q.strides[0], "Q_HEAD": q.strides[1], "K_ROW": k.strides[0], "K_HEAD": k.strides[1]},
        **{"V_ROW": v.strides[0], "V_GROUP": v.strides[1], "V_HEAD": v.strides[2]},
        **{"DECAY_ROW": decay.strides[0], "BETA_ROW": beta.strides[0], "EPS": EPS, "SCALE": keys**-0.5},
        **{"KEYS": power_of_two(keys), "VALUES": COLUMNS},
    }
    grid = (-(-values // COLUMNS), heads, step.sequences + 1)
    return (call_of("recurrent.gated_delta_rule", parameters, constants, grid, warps=1, stages=1),)
