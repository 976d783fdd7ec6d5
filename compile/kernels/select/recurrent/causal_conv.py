"""Selects the kernels for a group with a single `causal_conv`."""

from __future__ import annotations

from bringup.compile.kernels.call import Constant, KernelCall
from bringup.compile.kernels.code.types import power_of_two
from bringup.compile.kernels.select.recurrent.rows import FLOATS, rows_of_step
from bringup.compile.kernels.select.tensors import argument_of, call_of, result_of
from bringup.compile.schedule.graph.op_graph import Group, OpGraph

CHANNELS = 256  # channels of a program
TOKENS = 8  # tokens of a program in prefill
MOST_TAPS = 16  # taps of the kernel of decode, which has all tokens of a channel in registers


def causal_conv(graph: OpGraph, group: Group, capability: str) -> tuple[KernelCall, ...] | None:
    """One call in decode, and in prefill a second one that writes the states; None for another group."""
    if len(group.nodes) != 1 or group.nodes[0].short != "causal_conv":
        return None
    node = group.nodes[0]
    found = [argument_of(graph, node, name) for name in ("x_NC", "weight_CK", "state_RTC")]
    x, weight, state = [tensor for tensor in found if tensor is not None]
    bias, step, out = argument_of(graph, node, "bias_C"), rows_of_step(graph, node), result_of(graph, node)
    (tokens, channels), taps = x.shape, weight.shape[1]
    given = [tensor for tensor in (x, weight, state, bias) if tensor is not None]
    dense = [tensor.strides[-1] == 1 for tensor in (x, bias, state) if tensor is not None]
    if any(tensor.dtype not in FLOATS for tensor in given) or not all(dense):
        return None
    before = state if taps > 1 else None
    across = min(CHANNELS, max(32, power_of_two(channels)))
    of_state: dict[str, Constant] = {
        **{"C": channels, "TAPS": taps, "PADDING": state.shape[0] - 1, "X_ROW": x.strides[0]},
        **{"S_ROW": state.strides[0], "S_TAP": state.strides[1], "BC": across},
    }
    constants = of_state | {"W_ROW": weight.strides[0], "W_TAP": weight.strides[1]}
    blocks = -(-channels // across)
    fields = {"rows_B": step.rows, "lengths_B": step.lengths}
    operands = {"x_NC": x, "weight_CK": weight, "bias_C": bias, "state_RTC": before}
    if step.starts is None and taps <= MOST_TAPS:
        known = all(tensor.kind in ("weight", "state", "step") for tensor in (*given[1:], step.rows, step.lengths))
        parameters = {**operands, **fields, "out_NC": out}
        grid = (blocks, step.sequences, 1)
        constants |= {"KNOWN": known}
        return (call_of("recurrent.causal_conv_step", parameters, constants, grid, warps=across // 64 or 1, stages=1),)
    starts = step.starts or argument_of(graph, node, "step_starts")
    constants |= {"N": tokens, "B": step.sequences, "ENDS": power_of_two(step.sequences), "BN": TOKENS}
    parameters = {**operands, "starts": starts, **fields, "out_NC": out}
    grid = (blocks, -(-tokens // TOKENS), 1)
    results = call_of("recurrent.causal_conv", parameters, constants, grid, warps=4, stages=1)
    if before is None:
        return (results,)
    parameters = {"x_NC": x, "state_RTC": before, "starts": starts, **fields}
    grid = (blocks, step.sequences, 1)
    states = call_of("recurrent.causal_conv_state", parameters, of_state, grid, warps=across // 64 or 1, stages=1)
    return (results, states)
