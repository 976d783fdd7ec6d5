"""Groups of a single `causal_conv`, `gated_delta_rule` or `state_space`, whose states are a row for each sequence."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from bringup.compile.kernels.call import Operand
from bringup.compile.kernels.select.attention_calls import step_of
from bringup.compile.kernels.select.tensors import argument_of, result_of
from bringup.compile.llvm.ir.machine import Machine
from bringup.compile.llvm.select.call import Call, call, call_of_single
from bringup.compile.llvm.select.sizes import CONV_CHANNELS, FLOATS, STATE_COLUMNS
from bringup.compile.schedule.graph.op_graph import Group, Node, OpGraph


def recurrent(graph: OpGraph, group: Group, machine: Machine) -> tuple[Call, ...] | None:
    """One call; None if the operation is not supported."""
    return call_of_single(_SELECTORS, graph, group)


def _causal_conv(graph: OpGraph, node: Node) -> Call | None:
    names = ("x_NC", "weight_CK", "bias_C", "state_RTC")
    x, weight, bias, state = (argument_of(graph, node, name) for name in names)
    step, out = step_of(graph, node), result_of(graph, node)
    assert x is not None
    assert weight is not None
    assert state is not None
    dense = weight.is_dense and state.is_dense and (bias is None or bias.is_dense)
    if not dense or x.strides[1] != 1 or not {x.dtype, weight.dtype} <= set(FLOATS) or state.dtype != x.dtype:
        return None
    taps = weight.shape[1]
    settings = {"x": x.dtype, "weight": weight.dtype, "bias": bias.dtype if bias else "", "taps": taps}
    settings |= {"proposals": step.proposals}
    given: list[Operand] = [
        *(x.place, x.strides[0], weight.place, (bias or weight).place, state.place),
        *(step.starts.place, step.rows.place, step.lengths.place, out.place, x.shape[0], step.sequences, x.shape[1]),
        step.certain.place,
    ]
    return call("causal_conv", settings, given, 4 * CONV_CHANNELS * (taps + 1))


def _head_states(graph: OpGraph, node: Node) -> Call | None:
    """The gated delta rule, or the state space, which has no beta."""
    names = ("q_NGK", "k_NGK", "v_NGRV", "decay_NH", "state_SHKV")
    q, k, v, decay, state = (argument_of(graph, node, name) for name in names)
    beta = argument_of(graph, node, "beta_NH") if "beta_NH" in node.names else None
    step, out = step_of(graph, node), result_of(graph, node)
    assert q is not None
    assert k is not None
    assert v is not None
    assert decay is not None
    assert state is not None
    of_tokens = {"q": q, "k": k, "v": v, "decay": decay} | ({"beta": beta} if beta else {})
    unit = all(each.strides[-1] == 1 for each in of_tokens.values())
    floats = {each.dtype for each in of_tokens.values()} <= set(FLOATS)
    if not unit or not floats or not state.is_dense or state.dtype != "float32":
        return None
    settings = {
        **{name: each.dtype for name, each in of_tokens.items()},
        **{"heads": state.shape[1], "repeats": v.shape[2], "keys": state.shape[2], "values": state.shape[3]},
        **{"proposals": step.proposals},
    }
    given: list[Operand] = [
        *(q.place, *q.strides[:2], k.place, *k.strides[:2], v.place, *v.strides[:3], decay.place, decay.strides[0]),
        *(state.place, step.starts.place, step.rows.place, step.lengths.place, out.place, q.shape[0], step.sequences),
        step.certain.place,
        *((beta.place, beta.strides[0]) if beta else ()),
    ]
    return call(node.short, settings, given, 4 * state.shape[2] * (STATE_COLUMNS + 3))


_SELECTORS: Mapping[str, Callable[[OpGraph, Node], Call | None]] = {
    **{"causal_conv": _causal_conv, "gated_delta_rule": _head_states, "state_space": _head_states},
}
