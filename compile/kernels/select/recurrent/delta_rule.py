"""Selects the kernel for a group with a single `gated_delta_rule`."""

from __future__ import annotations

from bringup.compile.kernels.call import Constant, KernelCall
from bringup.compile.kernels.code.types import power_of_two
from bringup.compile.kernels.select.recurrent.rows import FLOATS, rows_of_step
from bringup.compile.kernels.select.tensors import argument_of, call_of, result_of
from bringup.compile.schedule.graph.op_graph import Group, OpGraph
from bringup.graphs.ops.recurrent.delta_rule import EPS

ELEMENTS = 2048  # of a state in the registers of a warp, 64 for each thread
ONE_WARP = 128  # channels of a key that a warp has alone; with more, one of the kernels spilled
COLUMNS = (4, 32)  # least and most columns of a state that a program has
MOST_KEYS = 512  # channels of a key: the elements of COLUMNS[0] columns


def delta_rule(graph: OpGraph, group: Group, capability: str) -> tuple[KernelCall, ...] | None:
    """One call, or None for another group."""
    if len(group.nodes) != 1 or group.nodes[0].short != "gated_delta_rule":
        return None
    node = group.nodes[0]
    names = ("q_NGK", "k_NGK", "v_NGRV", "decay_NH", "beta_NH", "state_SHKV")
    operands = {name: tensor for name in names if (tensor := argument_of(graph, node, name)) is not None}
    q, k, v, decay, beta, state = operands.values()
    step, out = rows_of_step(graph, node), result_of(graph, node)
    (tokens, groups, keys), (repeats, columns) = q.shape, v.shape[2:]
    contiguous = all(tensor.strides[-1] == 1 for tensor in (q, k, v, state))
    if any(tensor.dtype not in FLOATS for tensor in operands.values()) or not contiguous or keys > MOST_KEYS:
        return None
    rows = power_of_two(keys)
    least, most = COLUMNS
    across = max(least, min(most, ELEMENTS // rows, power_of_two(columns)))
    known = all(tensor.kind in ("state", "step") for tensor in (state, step.rows, step.lengths, step.starts) if tensor)
    constants: dict[str, Constant] = {
        **{"N": tokens, "B": step.sequences, "H": groups * repeats, "R": repeats, "K": keys, "V": columns},
        **{"PADDING": state.shape[0] - 1, "Q_ROW": q.strides[0], "Q_HEAD": q.strides[1]},
        **{"K_ROW": k.strides[0], "K_HEAD": k.strides[1]},
        **{"V_ROW": v.strides[0], "V_GROUP": v.strides[1], "V_HEAD": v.strides[2]},
        **{"D_ROW": decay.strides[0], "D_HEAD": decay.strides[1]},
        **{"B_ROW": beta.strides[0], "B_HEAD": beta.strides[1]},
        **{"S_ROW": state.strides[0], "S_HEAD": state.strides[1], "S_K": state.strides[2]},
        **{"SCALE": keys**-0.5, "EPS": EPS, "BK": rows, "BV": across, "KNOWN": known},
    }
    parameters = {**operands, "starts": step.starts, "rows_B": step.rows, "lengths_B": step.lengths, "out_NHV": out}
    grid = (-(-columns // across), groups * repeats, step.sequences + (step.starts is not None))
    return (
        call_of("recurrent.gated_delta_rule", parameters, constants, grid, warps=2 if rows > ONE_WARP else 1, stages=1),
    )
