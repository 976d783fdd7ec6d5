"""Selects the kernels for a group with a single operation whose state is one row for each sequence."""

from __future__ import annotations

from math import prod

from bringup.compile.kernels.call import Constant, KernelCall
from bringup.compile.kernels.code.types import power_of_two
from bringup.compile.kernels.select.attention_calls import NARROW, WIDE, Step, step_of
from bringup.compile.kernels.select.attention_tiles import TENSOR_CORE
from bringup.compile.kernels.select.tensors import Tensor, argument_of, call_of, dense_tensor, result_of, workspace
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
# these tokens take about 0.4 microseconds each. With more keys or columns in a program some kernels spill.
CHUNK = 32  # tokens
LEAST_TOKENS = 64  # of a step: from here on the longest sequence can have two full chunks
CHUNK_KEYS, CHUNK_COLUMNS = 128, 16  # most channels of a key; columns of a state that a program has


def recurrent(graph: OpGraph, group: Group, capability: str) -> tuple[KernelCall, ...] | None:
    """The calls of a convolution or of the gated delta rule; None for another group."""
    if len(group.nodes) != 1:
        return None
    call = {"causal_conv": _causal_conv, "gated_delta_rule": _delta_rule}.get(group.nodes[0].short)
    return call(graph, group.nodes[0]) if call else None


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
    grid = (blocks, step.sequences, 1)
    states = call_of("recurrent.causal_conv_state", parameters, of_state, grid, warps=across // 64 or 1, stages=1)
    return (results, states)


def _delta_rule(graph: OpGraph, node: Node) -> tuple[KernelCall, ...] | None:
    names = ("q_NGK", "k_NGK", "v_NGRV", "decay_NH", "beta_NH", "state_SHKV")
    operands = {name: tensor for name in names if (tensor := argument_of(graph, node, name)) is not None}
    q, k, v, decay, beta, state = operands.values()
    step, out = step_of(graph, node), result_of(graph, node)
    (tokens, groups, keys), (repeats, columns) = q.shape, v.shape[2:]
    contiguous = all(tensor.strides[-1] == 1 for tensor in (q, k, v, state))
    if any(tensor.dtype not in FLOATS for tensor in operands.values()) or not contiguous or keys > MOST_KEYS:
        return None
    rows = power_of_two(keys)
    least, most = COLUMNS
    across = max(least, min(most, ELEMENTS // rows, power_of_two(columns)))
    starts = None if step.decode else step.starts  # in decode, each sequence has one token
    known = all(tensor.kind in ("state", "step") for tensor in (state, step.rows, step.lengths, starts) if tensor)
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
    parameters = {**operands, "starts": starts, "rows_B": step.rows, "lengths_B": step.lengths, "out_NHV": out}
    narrow = all(tensor.dtype == "bfloat16" for tensor in (q, k, v))
    if starts is not None and narrow and keys <= CHUNK_KEYS and tokens >= LEAST_TOKENS:
        return _in_chunks(operands, step, out, constants)
    grid = (-(-columns // across), groups * repeats, step.sequences + (starts is not None))
    return (
        call_of("recurrent.gated_delta_rule", parameters, constants, grid, warps=2 if rows > ONE_WARP else 1, stages=1),
    )


def _in_chunks(
    operands: dict[str, Tensor], step: Step, out: Tensor, constants: dict[str, Constant]
) -> tuple[KernelCall, ...]:
    """Two calls: what does not depend on the state, of all chunks in parallel; then the state, chunk after chunk."""
    q, k, v, decay, beta, state = operands.values()
    tokens, heads, columns = out.shape
    slots = (tokens - 1) // CHUNK + step.sequences  # `chunk_of` in source/recurrent/sequences.py
    square, four = (slots, heads, CHUNK, CHUNK), (slots, heads, 4, CHUNK)
    shapes = {"solved_SHCC": square, "seen_SHCC": square, "factors_SHFC": four}
    places, end = workspace([4 * prod(shape) for shape in shapes.values()])
    scratch = {
        name: dense_tensor(place, WIDE, shape) for (name, shape), place in zip(shapes.items(), places, strict=True)
    }
    rows = max(TENSOR_CORE, power_of_two(q.shape[2]))
    sizes: dict[str, Constant] = {"C": CHUNK, "BK": rows, "BV": CHUNK_COLUMNS, "ENDS": power_of_two(step.sequences)}
    every = constants | sizes
    of_chunks = ("B", "H", "R", "K", "C", "ENDS", "SCALE", "EPS", "BK")
    of_chunks += ("Q_ROW", "Q_HEAD", "K_ROW", "K_HEAD", "D_ROW", "D_HEAD", "B_ROW", "B_HEAD")
    own = {name: every[name] for name in of_chunks}
    parameters = {"q_NGK": q, "k_NGK": k, "decay_NH": decay, "beta_NH": beta, "starts": step.starts, **scratch}
    chunks = call_of("recurrent.delta_chunks", parameters, own, (slots, heads, 1), warps=4, stages=1, scratch=end)
    own = {name: value for name, value in every.items() if name not in ("D_ROW", "D_HEAD", "B_ROW", "B_HEAD")}
    own = {name: value for name, value in own.items() if name not in ("SCALE", "EPS", "ENDS")}
    fields = {"starts": step.starts, "rows_B": step.rows, "lengths_B": step.lengths}
    parameters = {"q_NGK": q, "k_NGK": k, "v_NGRV": v, **scratch, "state_SHKV": state, **fields, "out_NHV": out}
    grid = (-(-columns // CHUNK_COLUMNS), heads, step.sequences + 1)
    states = call_of("recurrent.delta_states", parameters, own, grid, warps=4, stages=1, scratch=end)
    return (chunks, states)
