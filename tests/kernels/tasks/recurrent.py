"""A convolution over tokens, and the gated delta rule: sequences that begin and that continue, and padding."""

import numpy as np

from bringup.compile.schedule.graph.op_graph import View
from tests.kernels.graphs import Function
from tests.kernels.tasks.task import Task, step_of, task_of

ROWS = 4  # of the states


def stepped(f: Function, *, decode: bool) -> tuple[int, dict[str, View | bool]]:
    """The tokens, and the fields of a step of two sequences, the second of which begins if there are several tokens."""
    lengths, new = ((9, 5), (1, 1)) if decode else ((9, 5), (6, 5))
    fields = step_of(lengths, new, 1) | {"step_rows": np.array([2, 0])}
    padding = 0 if decode else 2
    for name in ("tokens", "slots", "positions"):
        fields[f"step_{name}"] = np.pad(fields[f"step_{name}"], (0, padding))
    views = {name: f.array(name.replace("_", ":", 1), each, "int64", "step") for name, each in fields.items()}
    return sum(new) + padding, {**views, "step_decode": decode, "step_contiguous": False}


def convolved(dtype: str, *, decode: bool) -> Task:
    f, channels, taps = Function(), 20, 4
    tokens, step = stepped(f, decode=decode)
    x, weight = f.given("x", (tokens, channels), dtype, "value"), f.given("weight", (channels, taps), dtype)
    bias, state = f.given("bias", (channels,), dtype), f.given("state", (ROWS, taps - 1, channels), dtype, "state")
    given = {"x_NC": x, "weight_CK": weight, "state_RTC": state, "bias_C": bias}
    f.node("bringup.causal_conv.default", {"out": ((tokens, channels), dtype)}, **given, **step)
    return task_of(f, "out")


def delta(dtype: str, *, decode: bool) -> Task:
    """Two value heads for a key head."""
    f, heads, keys, values = Function(), 2, 12, 9
    tokens, step = stepped(f, decode=decode)
    q, k = (f.given(name, (tokens, 1, keys), dtype, "value") for name in ("q", "k"))
    v = f.given("v", (tokens, 1, heads, values), dtype, "value")
    decay = f.array("decay", -f.random.random((tokens, heads)).astype(np.float32), "float32", "value")
    beta = f.array("beta", f.random.random((tokens, heads)).astype(np.float32), "float32", "value")
    state = f.given("state", (ROWS, heads, keys, values), "float32", "state")
    given = {"q_NGK": q, "k_NGK": k, "v_NGRV": v, "decay_NH": decay, "beta_NH": beta, "state_SHKV": state}
    f.node("bringup.gated_delta_rule.default", {"out": ((tokens, heads, values), dtype)}, **given, **step)
    return task_of(f, "out")
