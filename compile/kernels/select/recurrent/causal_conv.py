"""Selects the kernels for a `causal_conv`: one for a token of each sequence, or one for the results and one for the
states, because programs read the tokens before a sequence's that others would overwrite."""

from __future__ import annotations

from bringup.compile.kernels.call import Constant, KernelCall
from bringup.compile.kernels.code.types import power_of_two
from bringup.compile.kernels.select.attention_calls import NARROW, WIDE, step_of
from bringup.compile.kernels.select.tensors import Parameter, argument_of, call_of, result_of
from bringup.compile.schedule.graph.op_graph import Group, OpGraph

CHANNELS, TOKENS = 128, 16  # of a program


def causal_conv(graph: OpGraph, group: Group, capability: str) -> tuple[KernelCall, ...] | None:
    """One or two calls; None for another group."""
    (node, *others) = group.nodes
    if others or node.short != "causal_conv":
        return None
    found = [argument_of(graph, node, name) for name in ("x_NC", "weight_CK", "state_RTC")]
    x, weight, state = [tensor for tensor in found if tensor is not None]
    bias, step, out = argument_of(graph, node, "bias_C"), step_of(graph, node), result_of(graph, node)
    dense = all(each is None or each.is_dense for each in (weight, state, bias))
    if not dense or x.strides[1] != 1 or state.dtype != x.dtype or not {x.dtype, weight.dtype} <= {WIDE, *NARROW}:
        return None
    (tokens, channels), taps = x.shape, weight.shape[1]
    sequences = {"starts": step.starts, "rows": step.rows, "lengths": step.lengths}
    given: dict[str, Parameter] = {"x_NC": x, "weight_CK": weight, "state_RTC": state, "bias_C": bias, **sequences}
    sizes: dict[str, Constant] = {"C": channels, "X_ROW": x.strides[0], "CHANNELS": CHANNELS}
    blocks, of_step = -(-channels // CHANNELS), {"N": tokens, "B": step.sequences, "K": taps}
    if step.decode:
        grid = (blocks, step.sequences + 1, 1)
        parameters = given | {"out_NC": out}
        return (call_of("recurrent.conv_step", parameters, sizes | of_step, grid, warps=4, stages=1),)
    constants = sizes | of_step | {"ENDS": power_of_two(step.sequences), "TOKENS": TOKENS}
    grid = (blocks, -(-tokens // TOKENS), 1)
    results = call_of("recurrent.conv_tokens", given | {"out_NC": out}, constants, grid, warps=4, stages=1)
    if taps == 1:
        return (results,)
    of_states: dict[str, Parameter] = {"x_NC": x, "state_RTC": state, **sequences}
    grid = (blocks, step.sequences, 1)
    return (
        results,
        call_of("recurrent.conv_state", of_states, sizes | {"T": taps - 1}, grid, warps=4, stages=1),
    )
