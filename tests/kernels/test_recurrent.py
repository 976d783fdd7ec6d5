"""The kernels of recurrent ops on the emulator, against numpy in float64: sequence by sequence, token by token."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest

from bringup.compile.schedule.costs import bytes_by_buffer
from bringup.compile.schedule.graph.op_graph import Argument, View
from bringup.graphs.core.step import FIELDS
from tests.kernels.emulated import Emulated
from tests.kernels.graphs import NUMPY, Function, far

NEAR = {"float32": 3e-6, "bfloat16": 1e-2, "float16": 2e-3}
ROWS = 6  # of the states; the last is for padding


class Steps(NamedTuple):
    """The tokens of each sequence in a step and after it, its row, and padding after the tokens."""

    new: list[int]
    lengths: list[int]
    rows: list[int]
    padding: int
    decode: bool

    @property
    def tokens(self) -> int:
        return sum(self.new) + self.padding

    def fields(self, f: Function) -> dict[str, Argument]:
        starts, count = np.cumsum([0, *self.new]), len(self.new)
        arrays = {"starts": starts, "rows": np.array(self.rows), "lengths": np.array(self.lengths)}
        arrays |= {name: np.zeros(self.tokens) for name in ("tokens", "positions", "slots")}
        arrays |= {"block_table": np.zeros((count, 1)), "totals": np.zeros(count)}
        views = {name: f.array(f"step:{name}", arrays[name].astype(np.int64), "int64", "step") for name in FIELDS}
        return {
            **{f"step_{name}": view for name, view in views.items()},
            "step_decode": self.decode,
            "step_contiguous": False,
        }

    def live(self) -> list[tuple[int, slice, bool]]:
        """The row of each sequence with tokens, their range, and whether they are its first."""
        starts = np.cumsum([0, *self.new])
        return [
            (row, slice(starts[b], starts[b] + new), length == new)
            for b, (row, new, length) in enumerate(zip(self.rows, self.new, self.lengths, strict=True))
            if new
        ]


STEPS = {
    "prefill": Steps([5, 1, 19, 2, 0], [5, 7, 40, 2, 0], [3, 0, 1, 4, 5], 6, False),
    "whole": Steps([33], [33], [0], 0, False),
    "continued": Steps([1, 2], [2, 3], [2, 1], 0, False),
    # Padding sequences of decode share the last row; each has a token, and none in `starts`.
    "decode": Steps([1, 1, 1, 0, 0], [9, 1, 2, 0, 0], [4, 2, 0, 5, 5], 2, True),
    # A step that continues on the device has advanced the lengths of padding too.
    "later decode": Steps([1, 0, 0], [9, 3, 4], [1, 5, 5], 2, True),
}


def states(steps: Steps, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Random rows for sequences that continue, NaN in all others."""
    array = np.full((ROWS, *shape), np.nan)
    for row, _, is_new in steps.live():
        if not is_new:
            array[row] = np.random.default_rng(row).standard_normal(shape)
    return array.astype(NUMPY[dtype])


def compare(f: Function, machine: Emulated, steps: Steps, out: np.ndarray, after: np.ndarray, dtype: str) -> None:
    """`out` has NaN for padding, whose results need only be finite; rows of no sequence do not change."""
    found, state = (machine.read(name).astype(np.float64) for name in ("out", "state"))
    assert np.isfinite(found).all()
    given = ~np.isnan(out)
    assert far(found[given], out[given]) <= NEAR[dtype]
    used = [row for row, _, _ in steps.live()]
    others = [row for row in range(ROWS) if row not in used]
    assert far(state[used], after[used]) <= NEAR["float32" if f.buffers["state"].dtype == "float32" else dtype]
    assert np.array_equal(state[others], f.arrays["state"][others].astype(np.float64), equal_nan=True)


@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=pytest.mark.slow), "float16"])
@pytest.mark.parametrize("taps", [2, 3, pytest.param(7, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", STEPS)
def test_convolution(name: str, taps: int, dtype: str) -> None:
    """Of columns of a wider matrix; 150 channels are two blocks, the second not complete."""
    f, steps, channels = Function(taps), STEPS[name], 150
    wide = f.given("x", (steps.tokens, 170), dtype, "value")
    weights = f.given("weight", (channels, taps), dtype)
    bias = f.given("bias", (channels,), dtype) if taps != 3 else None
    state = f.array("state", states(steps, (taps - 1, channels), dtype), dtype, "state")
    x = View("x", (steps.tokens, channels), (wide.shape[1], 1), 8)
    f.node(
        "bringup.causal_conv.default", {"out": ((steps.tokens, channels), dtype)}, x_NC=x, weight_CK=weights,
        state_RTC=state, bias_C=bias, **steps.fields(f),
    )  # fmt: skip
    given, weight, before = (f.arrays[each].astype(np.float64) for each in ("x", "weight", "state"))
    out, after = np.full((steps.tokens, channels), np.nan), before.copy()
    for row, part, is_new in steps.live():
        past = np.zeros_like(before[row]) if is_new else before[row]
        seen = np.concatenate([past, given[part, 8 : 8 + channels]])
        windows = np.stack([seen[at : at + taps] for at in range(part.stop - part.start)])
        out[part] = np.einsum("nkc,ck->nc", windows, weight) + (
            0 if bias is None else f.arrays["bias"].astype(np.float64)
        )
        after[row] = seen[len(seen) - (taps - 1) :]
    compare(f, f.emulated(f.graph("out"), "sm_90"), steps, out, after, dtype)


@pytest.mark.parametrize(
    ("groups", "repeats", "k", "v", "dtype"),
    [
        (2, 3, 16, 12, "float32"),
        pytest.param(1, 2, 20, 8, "bfloat16", marks=pytest.mark.slow),
        (3, 1, 33, 9, "float16"),
    ],
)
@pytest.mark.parametrize("name", STEPS)
def test_delta_rule(name: str, groups: int, repeats: int, k: int, v: int, dtype: str) -> None:
    """Queries, keys and values are columns of one matrix, with the columns of each key head together."""
    f, steps, heads, each = Function(k), STEPS[name], groups * repeats, 2 * k + repeats * v
    tokens, width = steps.tokens, groups * each
    f.given("qkv", (tokens, width), dtype, "value")
    f.array("decay", -3 * f.random.random((tokens, heads)), "float32", "value")
    f.arrays["decay"] = f.arrays["decay"].astype(np.float32)
    f.array("beta", f.random.random((tokens, heads)).astype(NUMPY[dtype]), dtype, "value")
    state = f.array("state", states(steps, (heads, k, v), "float32"), "float32", "state")
    gates = {f"{name}_NH": View(name, (tokens, heads), (heads, 1)) for name in ("decay", "beta")}
    f.node(
        "bringup.gated_delta_rule.default", {"out": ((tokens, heads, v), dtype)},
        q_NGK=View("qkv", (tokens, groups, k), (width, each, 1)),
        k_NGK=View("qkv", (tokens, groups, k), (width, each, 1), k),
        v_NGRV=View("qkv", (tokens, groups, repeats, v), (width, each, v, 1), 2 * k), **gates, state_SHKV=state,
        **steps.fields(f),
    )  # fmt: skip
    qkv = f.arrays["qkv"].astype(np.float64).reshape(tokens, groups, each)
    decay, beta, before = (f.arrays[name].astype(np.float64) for name in ("decay", "beta", "state"))
    out, after = np.full((tokens, heads, v), np.nan), before.copy()
    for row, part, is_new in steps.live():
        for head in range(heads):
            group, own = divmod(head, repeats)
            S = np.zeros((k, v)) if is_new else before[row, head]
            for n in range(part.start, part.stop):
                q, key = (
                    vector / np.sqrt((vector**2).sum() + 1e-6)
                    for vector in (qkv[n, group, :k], qkv[n, group, k : 2 * k])
                )
                value = qkv[n, group, 2 * k + own * v : 2 * k + (own + 1) * v]
                S = np.exp(decay[n, head]) * S
                S = S + np.outer(key, beta[n, head] * (value - key @ S))
                out[n, head] = q @ S / np.sqrt(k)
            after[row, head] = S
    graph = f.graph("out")
    machine = f.emulated(graph, "sm_90")
    compare(f, machine, steps, out, after, dtype)
    counted = bytes_by_buffer(graph, graph.groups[0], 9)["state"]  # of all sequences of the step, read and written
    moved = next(each for each in f.run.bytes.buffers if each.name == "state")
    live = [is_new for *_, is_new in steps.live()]
    one = counted // (2 * len(steps.new))
    assert (moved.read, moved.written) == (one * live.count(False), one * len(live))
