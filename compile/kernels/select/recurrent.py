"""Selects the kernels for a group with a single operation whose state is one row for each sequence."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod

from bringup.compile.kernels.call import Constant, KernelCall
from bringup.compile.kernels.code.types import power_of_two
from bringup.compile.kernels.select.attention_calls import NARROW, WIDE, Step, step_of
from bringup.compile.kernels.select.attention_tiles import TENSOR_CORE
from bringup.compile.kernels.select.tensors import (
    Parameter,
    Tensor,
    argument_of,
    call_of,
    dense_tensor,
    result_of,
    workspace,
)
from bringup.compile.schedule.graph.op_graph import Group, Node, OpGraph
from bringup.graphs.ops.recurrent.delta_rule import EPS

FLOATS = (WIDE, *NARROW)
CHANNELS = 256  # channels of a program
TOKENS = 8  # tokens of a program in prefill
MOST_TAPS = 16  # taps of the kernel of decode, which has all tokens of a channel in registers
ELEMENTS = 2048  # of a state in the registers of a warp, 64 for each thread
ONE_WARP = 128  # channels of a key that a warp has alone; with more, one of the kernels spilled
COLUMNS = (4, 32)  # least and most columns of a state that a program has
MOST_KEYS = 512  # channels of a key: the elements of COLUMNS[0] columns
# Prefill in chunks. A chunk costs two launches and a few microseconds, whatever its number of tokens; token by token,
# these tokens take about 0.4 microseconds each.
CHUNK = 32  # tokens
LEAST_TOKENS = 64  # of a step: from here on the longest sequence can have two full chunks
# Columns of a state that a program has, by the channels of a key rounded up. With more, some kernels spill.
CHUNK_COLUMNS = {
    "gated_delta_rule": {16: 16, 32: 16, 64: 16, 128: 16},
    "state_space": {16: 16, 32: 16, 64: 16, 128: 32, 256: 16},
}
CHUNK_HEADS = 32  # value heads whose decays a program of `state_space_chunks` adds at a time
RESULTS = ("scores_SGCC", "factors_SHFC", "solved_SHCC", "seen_SHCC")  # of the first kernel for chunks


def recurrent(graph: OpGraph, group: Group, capability: str) -> tuple[KernelCall, ...] | None:
    """The calls of a convolution or of linear attention; None for another group."""
    if len(group.nodes) != 1:
        return None
    select = _SELECTORS.get(group.nodes[0].short)
    return select(graph, group.nodes[0]) if select else None


def _causal_conv(graph: OpGraph, node: Node) -> tuple[KernelCall, ...] | None:
    """One call in decode; in prefill a second one, which writes the states."""
    found = [argument_of(graph, node, name) for name in ("x_NC", "weight_CK", "state_RTC")]
    x, weight, state = [tensor for tensor in found if tensor is not None]
    bias, step, out = argument_of(graph, node, "bias_C"), step_of(graph, node), result_of(graph, node)
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
    if step.decode and taps <= MOST_TAPS:
        known = all(tensor.kind in ("weight", "state", "step") for tensor in (*given[1:], step.rows, step.lengths))
        parameters = {**operands, **fields, "out_NC": out}
        grid = (blocks, step.sequences, 1)
        constants |= {"KNOWN": known}
        return (call_of("recurrent.causal_conv_step", parameters, constants, grid, warps=across // 64 or 1, stages=1),)
    constants |= {"N": tokens, "B": step.sequences, "ENDS": power_of_two(step.sequences), "BN": TOKENS}
    parameters = {**operands, "starts": step.starts, **fields, "out_NC": out}
    grid = (blocks, -(-tokens // TOKENS), 1)
    results = call_of("recurrent.causal_conv", parameters, constants, grid, warps=4, stages=1)
    if before is None:
        return (results,)
    parameters = {"x_NC": x, "state_RTC": before, "starts": step.starts, **fields}
    parameters |= {"certain_B": step.certain if step.proposals else None}
    grid = (blocks, step.sequences, 1)
    states = call_of("recurrent.causal_conv_state", parameters, of_state, grid, warps=across // 64 or 1, stages=1)
    return (results, states)


def _linear_attention(graph: OpGraph, node: Node) -> tuple[KernelCall, ...] | None:
    """One call, token by token; in prefill of keys in bfloat16 two calls, in chunks, unless it has proposals."""
    names = ("q_NGK", "k_NGK", "v_NGRV", "decay_NH", "beta_NH", "state_SHKV")
    operands = {name: tensor for name in names if (tensor := argument_of(graph, node, name)) is not None}
    q, k, v, decay, state = (operands[name] for name in names if name != "beta_NH")
    beta, step, out = operands.get("beta_NH"), step_of(graph, node), result_of(graph, node)
    (tokens, groups, keys), (repeats, columns) = q.shape, v.shape[2:]
    contiguous = all(tensor.strides[-1] == 1 for tensor in (q, k, v, state))
    if any(tensor.dtype not in FLOATS for tensor in operands.values()) or not contiguous or keys > MOST_KEYS:
        return None
    rows = power_of_two(keys)
    least, most = COLUMNS
    across = max(least, min(most, ELEMENTS // rows, power_of_two(columns)))
    starts = None if step.decode else step.starts  # in decode, each sequence has one token
    certain = step.certain if step.proposals else None
    read = (state, step.rows, step.lengths, starts, certain)
    known = all(tensor.kind in ("state", "step") for tensor in read if tensor)
    constants: dict[str, Constant] = {
        **{"N": tokens, "B": step.sequences, "H": groups * repeats, "R": repeats, "K": keys, "V": columns},
        **{"PADDING": state.shape[0] - 1, "Q_ROW": q.strides[0], "Q_HEAD": q.strides[1]},
        **{"K_ROW": k.strides[0], "K_HEAD": k.strides[1]},
        **{"V_ROW": v.strides[0], "V_GROUP": v.strides[1], "V_HEAD": v.strides[2]},
        **{"D_ROW": decay.strides[0], "D_HEAD": decay.strides[1]},
        **({"B_ROW": beta.strides[0], "B_HEAD": beta.strides[1]} if beta else {"B_ROW": 0, "B_HEAD": 0}),
        **{"S_ROW": state.strides[0], "S_HEAD": state.strides[1], "S_K": state.strides[2]},
        **{"SCALE": keys**-0.5, "EPS": EPS, "BK": rows, "BV": across, "KNOWN": known},
    }
    across_chunk = CHUNK_COLUMNS[node.short].get(max(TENSOR_CORE, rows))
    is_prompt = not (step.decode or step.proposals) and tokens >= LEAST_TOKENS
    if is_prompt and q.dtype == k.dtype == "bfloat16" and across_chunk:
        return _in_chunks(operands, step, out, constants, across_chunk)
    parameters: dict[str, Parameter] = {name: operands.get(name) for name in names}
    parameters |= {"starts": starts, "rows_B": step.rows, "lengths_B": step.lengths, "certain_B": certain}
    parameters |= {"out_NHV": out}
    grid = (-(-columns // across), groups * repeats, step.sequences + (starts is not None))
    warps = 2 if rows > ONE_WARP else 1
    return (call_of("recurrent.linear_attention", parameters, constants, grid, warps=warps, stages=1),)


def _in_chunks(
    operands: dict[str, Tensor], step: Step, out: Tensor, constants: dict[str, Constant], across: int
) -> tuple[KernelCall, ...]:
    """Two calls: what does not depend on the state, of all chunks in parallel; then the state, chunk after chunk."""
    (tokens, heads, columns), (_, groups, keys) = out.shape, operands["q_NGK"].shape
    slots = (tokens - 1) // CHUNK + step.sequences  # `chunk_of` in source/recurrent/sequences.py
    is_delta = "beta_NH" in operands
    stem, programs = ("delta_chunks", heads) if is_delta else ("state_space_chunks", groups)
    shapes = {
        "scores_SGCC": (slots, groups, CHUNK, CHUNK),
        **dict.fromkeys(("solved_SHCC", "seen_SHCC"), (slots, heads, CHUNK, CHUNK)),
        "factors_SHFC": (slots, heads, 4, CHUNK),
    }
    results = RESULTS[1:] if is_delta else RESULTS[:2]
    places, end = workspace([4 * prod(shapes[name]) for name in results])
    scratch: dict[str, Parameter] = {
        name: dense_tensor(place, WIDE, shapes[name]) for name, place in zip(results, places, strict=True)
    }
    every = constants | {
        **{"C": CHUNK, "BK": max(TENSOR_CORE, power_of_two(keys)), "ENDS": power_of_two(step.sequences)},
        **{"BV": across, "BR": min(CHUNK_HEADS, power_of_two(heads // groups))},
    }
    shared = ("B", "H", "R", "K", "C", "BK", "Q_ROW", "Q_HEAD", "K_ROW", "K_HEAD")
    own = ("ENDS", "D_ROW", "D_HEAD", *(("B_ROW", "B_HEAD", "SCALE", "EPS") if is_delta else ("BR",)))
    sizes = {name: every[name] for name in (*shared, *own)}
    given = {name: x for name, x in operands.items() if name not in ("v_NGRV", "state_SHKV")}
    parameters = {**given, "starts": step.starts, **scratch}
    chunks = call_of(f"recurrent.{stem}", parameters, sizes, (slots, programs, 1), warps=4, stages=1, scratch=end)
    own = ("N", "V", "PADDING", "V_ROW", "V_GROUP", "V_HEAD", "S_ROW", "S_HEAD", "S_K", "BV", "KNOWN")
    sizes = {name: every[name] for name in (*shared, *own)}
    parameters = {name: operands[name] for name in ("q_NGK", "k_NGK", "v_NGRV")}
    parameters |= {name: scratch.get(name) for name in RESULTS}
    parameters |= {"state_SHKV": operands["state_SHKV"], "starts": step.starts, "rows_B": step.rows}
    parameters |= {"lengths_B": step.lengths, "out_NHV": out}
    grid = (-(-columns // across), heads, step.sequences + 1)
    states = call_of("recurrent.chunk_states", parameters, sizes, grid, warps=4, stages=1, scratch=end)
    return (chunks, states)


_SELECTORS: Mapping[str, Callable[[OpGraph, Node], tuple[KernelCall, ...] | None]] = {
    **{"causal_conv": _causal_conv, "gated_delta_rule": _linear_attention, "state_space": _linear_attention},
}
