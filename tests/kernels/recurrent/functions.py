"""Functions of one recurrent operation, whose operands are views of larger tensors, and their states before a step."""

from __future__ import annotations

import numpy as np

from bringup.compile.program.step_inputs import Chunk, packed
from bringup.compile.schedule.graph.op_graph import View
from tests.kernels.graphs import NUMPY, Function

ROWS = 6  # of the states; the last is for padding
# The tokens before a step and in it, of each sequence; then the tokens of the step, and its sequences.
Step = tuple[tuple[tuple[int, int], ...], int, int]
RAGGED: Step = (((0, 5), (7, 2), (3, 9), (0, 1)), 24, 6)  # two sequences and seven tokens of padding
FULL: Step = (((1, 6),), 6, 1)
PROPOSED: Step = (((0, 5), (7, 2), (3, 9), (4, 3)), 70, 6)  # as many tokens as prompts in chunks have
CERTAIN = (3, 2, 1, 0)  # tokens of each sequence of PROPOSED that are no proposals
# Sequences of one and of several chunks, that begin and end inside of 32 tokens; two of padding, and its tokens.
CHUNKS: Step = (((0, 33), (7, 2), (3, 70), (0, 1)), 130, 6)
DECODE: Step = (((4, 1), (0, 1), (9, 1)), 5, 5)  # two sequences of padding, with the same row
PLACES = (3, 0, 4, 1)  # the row of each sequence


def add_step(f: Function, step: Step, *, decode: bool) -> dict[str, View | bool]:
    """The fields of a step, as buffers."""
    sequences, tokens, size = step
    chunks = [
        Chunk([0] * new, before, range(9), row, before + new, certain if step is PROPOSED else None)
        for (before, new), row, certain in zip(sequences, PLACES, CERTAIN, strict=False)
    ]
    arrays = packed(chunks, tokens, size, 9, ROWS - 1)
    views = {f"step_{name}": f.array(f"step:{name}", each, "int64", "step") for name, each in arrays.items()}
    return {**views, "step_decode": decode, "step_contiguous": False, "step_proposals": step is PROPOSED}


def add_state(f: Function, step: Step, shape: tuple[int, ...], dtype: str) -> View:
    """The states: NaN in the rows of sequences that begin, and in those of no sequence."""
    array = np.full((ROWS, *shape), np.nan, np.float64)
    for (before, _), row in zip(step[0], PLACES, strict=False):
        if before:
            array[row] = f.random.standard_normal(shape)
    return f.array("state", array.astype(NUMPY[dtype]), dtype, "state")


def convolution(step: Step, channels: int, taps: int, dtype: str, *, decode: bool, bias: bool) -> Function:
    """Of the columns 3 to 3 + channels of a wider matrix."""
    f = Function(taps)
    tokens = step[1]
    f.given("x", (tokens, channels + 8), dtype, "value")
    f.node(
        "bringup.causal_conv.default",
        {"out": ((tokens, channels), dtype)},
        x_NC=View("x", (tokens, channels), (channels + 8, 1), 3),
        weight_CK=f.given("weight", (channels, taps), dtype),
        state_RTC=add_state(f, step, (taps - 1, channels), dtype),
        bias_C=f.given("bias", (channels,), dtype) if bias else None,
        **add_step(f, step, decode=decode),
    )
    return f


def delta_rule(step: Step, heads: tuple[int, int], sizes: tuple[int, int], dtype: str, *, decode: bool) -> Function:
    """Queries, keys and values of one tensor: the channels of a key head are consecutive."""
    f, tokens, (groups, repeats), (k, v) = Function(heads[0]), step[1], heads, sizes
    each = 2 * k + repeats * v
    f.given("qkv", (tokens, groups, each), dtype, "value")
    row, strides = groups * each, (groups * each, each, 1)
    rates = f.random.random((tokens, groups * repeats))
    f.node(
        "bringup.gated_delta_rule.default",
        {"out": ((tokens, groups * repeats, v), dtype)},
        q_NGK=View("qkv", (tokens, groups, k), strides, 0),
        k_NGK=View("qkv", (tokens, groups, k), strides, k),
        v_NGRV=View("qkv", (tokens, groups, repeats, v), (row, each, v, 1), 2 * k),
        decay_NH=_decays(f, tokens, groups * repeats),
        beta_NH=f.array("beta", rates.astype(NUMPY[dtype]), dtype, "value"),
        state_SHKV=add_state(f, step, (groups * repeats, k, v), "float32"),
        **add_step(f, step, decode=decode),
    )
    return f


def state_space(
    step: Step, heads: tuple[int, int], sizes: tuple[int, int], dtypes: tuple[str, str], *, decode: bool
) -> Function:
    """Queries and keys are columns of one matrix, values are those of another. `dtypes`: of the two."""
    f, tokens, (groups, repeats), (k, v) = Function(heads[1]), step[1], heads, sizes
    row, each = 2 * groups * k + 8, repeats * v
    f.given("qk", (tokens, row), dtypes[0], "value")
    f.given("v", (tokens, groups * each), dtypes[1], "value")
    f.node(
        "bringup.state_space.default",
        {"out": ((tokens, groups * repeats, v), dtypes[1])},
        q_NGK=View("qk", (tokens, groups, k), (row, k, 1), 8 + groups * k),
        k_NGK=View("qk", (tokens, groups, k), (row, k, 1), 8),
        v_NGRV=View("v", (tokens, groups, repeats, v), (groups * each, each, v, 1), 0),
        decay_NH=_decays(f, tokens, groups * repeats),
        state_SHKV=add_state(f, step, (groups * repeats, k, v), "float32"),
        **add_step(f, step, decode=decode),
    )
    return f


def _decays(f: Function, tokens: int, heads: int) -> View:
    """Of all heads but the first, weak ones that follow -1e4 or -inf: sums of both have no digits of the weak ones."""
    decays = -2 * f.random.random((tokens, heads))
    decays[:, 1:] /= 100
    decays[2::68, 1:], decays[36::68, 1:] = -1e4, -np.inf  # each in the first tokens of a chunk of CHUNKS
    return f.array("decay", decays.astype(np.float32), "float32", "value")
