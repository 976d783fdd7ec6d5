"""Code written from nodes: the places of elements, whole numbers, and what has no kernel."""

from __future__ import annotations

import numpy as np
import pytest

from bringup.compile.kernels.select.registry import calls_of
from bringup.compile.schedule.graph.op_graph import Buffer, DType, Group, Node, OpGraph, View, whole
from tests.kernels.graphs import Function, far

FLOAT = "float32"


def test_two_axes_of_a_view_on_one_axis_of_a_buffer() -> None:
    """Head 2 of three that lie side by side in a row: the head is a number, its channel a variable."""
    f, channels = Function(), 5
    f.node("aten.mul.Tensor", {"a": ((4, 3 * channels), FLOAT)}, self=f.given("x", (4, 15), kind="value"), other=2.0)
    heads = View("a", (4, 3, channels), (15, channels, 1), 0)
    f.node("aten.add.Tensor", {"b": ((4, 3, channels), FLOAT)}, self=heads, other=1.0, alpha=1)
    f.node("aten.neg.default", {"c": ((4, channels), FLOAT)}, self=View("b", (4, channels), (15, 1), 2 * channels))
    assert far(f.emulated(f.graph("c"), "sm_90").read("c"), f.expected()["c"]) <= 2e-6


def cast(f: Function, x: View, name: str, dtype: str) -> View:
    settings = {"non_blocking": False, "copy": False, "memory_format": None}
    return f.node("aten.to.dtype", {name: (x.shape, dtype)}, self=x, dtype=DType(dtype), **settings)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32"])
def test_narrow_whole_numbers_wrap(dtype: str) -> None:
    f = Function()
    x = f.array("x", np.array([[300, -129, 5, 70000, 2**31 + 7, -(2**40) - 3]]), "int64", "value")
    cast(f, cast(f, x, "y", dtype), "o", "int64")
    np.testing.assert_array_equal(f.emulated(f.graph("o"), "sm_90").read("o"), f.arrays["x"].astype(dtype))


def test_no_kernel_computes_in_float64() -> None:
    f = Function()
    wide = cast(f, f.given("x", (1, 4), kind="value"), "y", "float64")
    cast(f, wide, "o", FLOAT)
    graph = f.graph("o")
    assert calls_of(graph, graph.groups[0], "sm_90") is None


@pytest.mark.parametrize("rows", [1, 3])
def test_negative_numbers_of_rows_count_from_the_end(rows: int) -> None:
    f = Function()
    numbers = f.array("step:i", np.array([-1, 0, -4])[:rows], "int64", "step")
    f.node("aten.index.Tensor", {"o": ((rows, 8), FLOAT)}, self=f.given("t", (4, 8)), indices=(numbers,))
    np.testing.assert_array_equal(f.emulated(f.graph("o"), "sm_90").read("o"), f.arrays["t"][[-1, 0, 0][:rows]])


def test_places_in_large_buffers_are_computed_in_64_bits() -> None:
    """A weight of 2.8e9 elements, turned: the second variable has the large stride."""
    buffers = {
        "w": Buffer(name="w", shape=(40000, 70000), dtype="bfloat16", kind="weight"),
        "o": Buffer(name="o", shape=(8, 40000), dtype="bfloat16", kind="temporary"),
    }
    turned = View("w", (8, 40000), (1, 70000), 0)
    node = Node(op="aten.clone.default", names=("self",), arguments=(turned,), outputs=("o",))
    graph = OpGraph("f", buffers, (Group((node,)),), (whole(buffers["o"]),))
    (call,) = calls_of(graph, graph.groups[0], "sm_90") or ()
    body = str(dict(call.kernel.constants)["BODY"])
    (line,) = (line for line in body.splitlines() if "tl.load" in line)
    assert line.count(".to(tl.int64)") == 2
    assert ".to(tl.int64) * 70000" in line


def test_results_with_other_rows_than_a_product_are_no_epilogue() -> None:
    """Two rows of three: the product's programs have all three."""
    f = Function()
    x, w = f.given("x", (3, 8), kind="value"), f.given("w", (6, 8))
    y = f.node("bringup.linear.default", {"y": ((3, 6), FLOAT)}, x=x, weight=w, bias=None)
    f.node("aten.neg.default", {"o": ((2, 6), FLOAT)}, self=View(y.buffer, (2, 6), (6, 1), 0))
    graph = f.graph("o")
    assert calls_of(graph, graph.groups[0], "sm_90") is None


@pytest.mark.parametrize("tokens", [65535, 65536])
def test_a_launch_has_no_more_programs_than_a_device_starts(tokens: int) -> None:
    """Scores of keys have a program for each token on the second axis of the grid."""
    f = Function()
    shapes = {"q": (tokens, 4, 16), "k": (1, 8, 16), "w": (tokens, 4)}
    for name, shape in shapes.items():
        f.buffers[name] = Buffer(name=name, shape=shape, dtype="bfloat16", kind="value")
    starts = f.array("step:starts", np.array([0, tokens]), "int64", "step")
    q, k, w = (whole(f.buffers[name]) for name in shapes)
    f.node("bringup.index_scores.default", {"o": ((tokens, 8), FLOAT)}, q_NHD=q, k_BLD=k, weights_NH=w,
           step_starts=starts, step_decode=False)  # fmt: skip
    graph = f.graph("o")
    assert (calls_of(graph, graph.groups[0], "sm_90") is None) is (tokens > 65535)
