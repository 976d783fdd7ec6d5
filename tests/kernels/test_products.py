"""Products with all that is fused into them, on the emulator against float64."""

from __future__ import annotations

import numpy as np
import pytest

from bringup.compile.kernels.select.registry import calls_of, split
from bringup.compile.schedule.graph.op_graph import View
from tests.kernels.graphs import Function, far

NEAR = {"float32": 4e-6, "bfloat16": 1.6e-2, "float16": 2e-3}
LINEAR = "bringup.linear.default"


def linear(f: Function, x: View, columns: int, name: str = "y", dtype: str = "float32", bias: bool = True) -> View:
    weight = f.given(f"{name}.weight", (columns, x.shape[-1]), dtype)
    plus = f.given(f"{name}.bias", (columns,), dtype) if bias else None
    return f.node(LINEAR, {name: ((*x.shape[:-1], columns), dtype)}, x=x, weight=weight, bias=plus)


def rms_norm(f: Function, x: View, name: str, dtype: str, **settings: float | bool) -> View:
    scale = f.given(f"{name}.weight", (x.shape[-1],), dtype)
    settings = {"offset": 0.0, "round_last": False} | settings
    return f.node("bringup.rms_norm.default", {name: (x.shape, dtype)}, x=x, weight=scale, eps=1e-5, **settings)


def layer_norm(f: Function, x: View, name: str, dtype: str) -> View:
    scale, shift = (f.given(f"{name}.{part}", (x.shape[-1],), dtype) for part in ("weight", "bias"))
    settings = {"x": x, "weight": scale, "bias": shift, "eps": 1e-5}
    return f.node("bringup.layer_norm.default", {name: (x.shape, dtype)}, **settings)


OF = {"float32": "sm_80", "bfloat16": "sm_90", "float16": "sm_89"}
# Each dtype with each of the two kernels; a matrix unit has a form for each dtype, one row is multiplied in float32.
PRODUCTS = [
    (1, 37, 70, "float32"),
    (1, 2100, 12, "float16"),
    (3, 70, 33, "bfloat16"),
    (40, 130, 45, "float32"),
    (40, 130, 45, "bfloat16"),
    pytest.param(40, 130, 45, "float16", marks=pytest.mark.slow),
    pytest.param(1, 37, 70, "bfloat16", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("rows", "channels", "columns", "dtype"), PRODUCTS)
def test_norm_product_and_residual(rows: int, channels: int, columns: int, dtype: str) -> None:
    f = Function()
    x = f.given("x", (rows, channels), dtype, "value")
    y = linear(f, layer_norm(f, x, "n", dtype) if rows <= 16 else x, columns, dtype=dtype)
    residual = f.given("r", (rows, columns), dtype, "value")
    f.node("aten.add.Tensor", {"out": ((rows, columns), dtype)}, self=residual, other=y, alpha=1)
    graph = f.graph("out")
    machine = f.emulated(graph, OF[dtype])
    assert far(machine.read("out"), f.expected()["out"]) < NEAR[dtype]


@pytest.mark.parametrize(
    ("rows", "interleaved"),
    [(1, False), (1, True), (5, True), pytest.param(5, False, marks=pytest.mark.slow)],
)
def test_gate_and_up_of_one_matrix(rows: int, interleaved: bool) -> None:
    """Two accumulators: halves of the columns, or every second one; and a bound, as gpt-oss has it."""
    f, inner = Function(), 21
    x = f.given("x", (rows, 50), kind="value")
    y = linear(f, rms_norm(f, x, "n", "float32"), 2 * inner)
    strides, second = ((2 * inner, 2), 1) if interleaved else ((2 * inner, 1), inner)
    gate, up = (View(y.buffer, (rows, inner), strides, offset) for offset in (0, second))
    shape = ((rows, inner), "float32")
    low = f.node("aten.clamp.default", {"low": shape}, self=gate, min=None, max=0.7)
    act = f.node("bringup.silu.default", {"act": shape}, x=low)
    f.node("aten.mul.Tensor", {"out": shape}, self=act, other=up)
    machine = f.emulated(f.graph("out"), "sm_90")
    assert far(machine.read("out"), f.expected()["out"]) < 1e-5


@pytest.mark.parametrize("short", ["gelu", "gelu_tanh", "silu", "relu"])
def test_activations(short: str) -> None:
    f = Function()
    y = linear(f, f.given("x", (1, 40), kind="value"), 30)
    f.node(f"bringup.{short}.default", {"out": ((1, 30), "float32")}, x=y)
    assert far(f.emulated(f.graph("out"), "sm_90").read("out"), f.expected()["out"]) < 1e-5


def test_a_bounded_logit() -> None:
    """cap · tanh(x / cap), in float32, of bfloat16."""
    f, dtype = Function(), "float32"
    y = linear(f, f.given("x", (2, 40), kind="value"), 30, bias=False)
    parts = f.node("aten.div.Tensor", {"d": ((2, 30), dtype)}, self=y, other=3.0)
    turned = f.node("aten.tanh.default", {"t": ((2, 30), dtype)}, self=parts)
    f.node("aten.mul.Tensor", {"out": ((2, 30), dtype)}, self=turned, other=3.0)
    assert far(f.emulated(f.graph("out"), "sm_90").read("out"), f.expected()["out"]) < 1e-5


# Rows do not change the norm, which each of the two kernels computes first.
@pytest.mark.parametrize(
    ("rows", "settings"), [(1, {}), (1, {"offset": 1.0}), (1, {"round_last": True}), (4, {"round_last": True})]
)
def test_norms_of_one_rounding_each(rows: int, settings: dict[str, float | bool]) -> None:
    """In bfloat16 the norm's own roundings decide: the results are torch's."""
    f, dtype = Function(), "bfloat16"
    x = f.given("x", (rows, 64), dtype, "value")
    linear(f, rms_norm(f, x, "n", dtype, **settings), 48, dtype=dtype)
    found = f.emulated(f.graph("y"), "sm_90").read("y")
    assert far(found, f.expected(wide=False)["y"]) < 2**-7


# Each of the two kernels writes caches of each dtype, which is a rounding of what it has computed by then. Norms of
# heads, and rope of more rows than a tile has, are a launch of their own.
HEADS = [
    pytest.param(1, 4, 2, 16, 8, False, False, "float32", id="row"),
    pytest.param(5, 3, 1, 10, 5, False, True, "bfloat16", id="normed"),
    pytest.param(1, 3, 1, 10, 5, False, True, "float32", id="row-normed"),
    pytest.param(1, 9, 2, 128, 64, False, True, "bfloat16", id="row-normed-by-several-programs"),
    pytest.param(129, 2, 1, 10, 5, False, False, "float32", id="more-rows-than-a-tile"),
    pytest.param(18, 2, 2, 12, 3, False, False, "bfloat16", id="partial", marks=pytest.mark.slow),
    pytest.param(3, 2, 2, 12, 3, True, True, "float32", id="partial-interleaved-normed"),
    pytest.param(1, 2, 1, 8, 4, True, False, "bfloat16", id="interleaved"),
]


@pytest.mark.parametrize(("rows", "heads", "groups", "channels", "turned", "interleaved", "normed", "cache"), HEADS)
def test_heads_go_to_caches(
    rows: int, heads: int, groups: int, channels: int, turned: int, interleaved: bool, normed: bool, cache: str
) -> None:
    f, dtype = Function(), "float32"
    width = (heads + 2 * groups) * channels
    x = f.given("x", (rows, 40), kind="value")
    y = linear(f, x, width, "qkv")
    cos, sin = (f.given(name, (rows, turned), kind="value") for name in ("cos", "sin"))
    slots = f.array("step:slots", f.random.permutation(150)[:rows].astype(np.int64), "int64", "step")
    caches = {name: f.array(name, np.zeros((150, groups, channels), np.float32), cache, "state") for name in "kv"}
    for name in "kv":
        f.arrays[name] = f.arrays[name].astype({"float32": np.float32, "bfloat16": "bfloat16"}[cache])

    def part(count: int, begin: int) -> View:
        return View(y.buffer, (rows, count, channels), (width, channels, 1), begin * channels)

    def rotated(name: str, view: View) -> View:
        if normed:
            view = rms_norm(f, view, f"{name}.norm", dtype)
        shape = {f"{name}.rope": (view.shape, dtype)}
        return f.node("bringup.rope.default", shape, x_NHK=view, cos_NC=cos, sin_NC=sin, interleaved=interleaved)

    write = "bringup.write_cache.default"
    k = rotated("k", part(groups, heads))
    f.node(write, {}, cache_SGK=caches["k"], slots_N=slots, rows_NGK=k)
    f.node(write, {}, cache_SGK=caches["v"], slots_N=slots, rows_NGK=part(groups, heads + groups))
    rotated("q", part(heads, 0))
    graph = split(f.graph("q.rope"), "sm_90")
    calls = [call for group in graph.groups for call in calls_of(graph, group, "sm_90") or ()]
    stems = ["linear" if rows == 1 else "linear_tile", *(["elements"] if normed or rows > 128 else [])]
    assert [call.kernel.stem for call in calls] == stems
    machine, expected = f.emulated(graph, "sm_90"), f.expected()
    assert far(machine.read("q.rope"), expected["q.rope"]) < 4e-6
    for name in "kv":
        assert far(machine.read(name), expected[name]) < (4e-6 if cache == "float32" else 2**-8)


def test_columns_that_are_stored_and_cached() -> None:
    """As of GPT-2: no rope, the product stays, and some of its columns are rows of caches; heads lie in between."""
    f, rows, heads, channels = Function(), 3, 3, 8
    y = linear(f, f.given("x", (rows, 24), kind="value"), 3 * heads * channels, "qkv")
    slots = f.array("step:slots", np.array([9, 2, 31]), "int64", "step")
    for number, name in enumerate("kv"):
        cache = f.array(name, np.zeros((40, heads, channels), np.float32), "float32", "state")
        view = View(y.buffer, (rows, heads, channels), (72, 3 * channels, 1), (number + 1) * channels)
        f.node("bringup.write_cache.default", {}, cache_SGK=cache, slots_N=slots, rows_NGK=view)
    machine, expected = f.emulated(f.graph("qkv"), "sm_90"), f.expected()
    for name in ("qkv", "k", "v"):
        assert far(machine.read(name), expected[name]) < 4e-6


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_one_row_reads_its_weights_once(dtype: str) -> None:
    """Bytes of a decode product: each weight once, x and the norm's weight once for each program."""
    f, channels, columns = Function(), 512, 96
    x = f.given("x", (1, channels), dtype, "value")
    linear(f, rms_norm(f, x, "n", dtype), columns, dtype=dtype, bias=False)
    graph = f.graph("y")
    f.emulated(graph, "sm_90")
    calls = calls_of(graph, graph.groups[0], "sm_90")
    assert calls is not None
    size = 4 if dtype == "float32" else 2
    weights, row, programs = columns * channels * size, channels * size, calls[0].grid[0]
    assert f.run.bytes.read <= weights + 3 * row * programs
    assert f.run.bytes.written == columns * size
