"""Norms, rope and writes of caches on the CPU against float64 by torch."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from bringup.compile.schedule.graph.op_graph import View
from tests.kernels.graphs import NUMPY, Function, far
from tests.llvm.native import run

# Largest |difference| over largest |result|: float32 inside, results rounded once or, as the operation says, twice.
TOLERANCES = {"float32": 2e-6, "bfloat16": 1e-2, "float16": 1e-3}


def differs(function: Function, name: str, machine: str = "host", threads: int = 3) -> float:
    buffer = function.buffers[name]
    given = function.arrays | {name: np.full(buffer.shape, np.nan, NUMPY[buffer.dtype])}
    return far(run(function.graph(name), given, machine, threads).read(name), function.expected()[name])


@pytest.mark.parametrize("machine", ["host", "generic"])
@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("shape", [(1, 1), (5, 7), (3, 130)])
@pytest.mark.parametrize("settings", [{}, {"offset": 1.0}, {"round_last": True}], ids=["rounded", "offset", "last"])
def test_rms_norm(settings: dict[str, object], shape: tuple[int, ...], dtype: str, machine: str) -> None:
    function = Function()
    x, weight = function.given("x", shape, dtype), function.given("w", shape[-1:], dtype)
    arguments = {"offset": 0.0, "round_last": False} | settings
    function.node("bringup.rms_norm.default", {"y": (shape, dtype)}, x=x, weight=weight, eps=1e-5, **arguments)
    assert differs(function, "y", machine) <= TOLERANCES[dtype]


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("shape", [(1, 2), (5, 7), (3, 130)])
def test_layer_norm(shape: tuple[int, ...], dtype: str) -> None:
    function = Function()
    x, weight, bias = (
        function.given(name, part, dtype) for name, part in (("x", shape), ("w", shape[-1:]), ("b", shape[-1:]))
    )
    function.node("bringup.layer_norm.default", {"y": (shape, dtype)}, x=x, weight=weight, bias=bias, eps=1e-5)
    assert differs(function, "y") <= TOLERANCES[dtype]


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("shape", [(1, 1), (5, 7), (2, 3, 130)])
def test_softmax(shape: tuple[int, ...], dtype: str) -> None:
    """Of scores up to 100, some of which are -infinity."""
    function = Function()
    scores = 25 * function.random.standard_normal(shape)
    scores[..., 1::5] = -np.inf
    x = function.array("x", scores.astype(NUMPY[dtype]), dtype, "temporary")
    function.node("aten.softmax.int", {"y": (shape, dtype)}, self=x, dim=-1, dtype=None)
    assert differs(function, "y") <= TOLERANCES[dtype]


def test_a_row_of_zeros_is_normed_to_zeros() -> None:
    function = Function()
    x = function.array("x", np.zeros((2, 9), np.float32), "float32")
    function.node("bringup.rms_norm.default", {"y": ((2, 9), "float32")}, x=x, weight=function.given("w", (9,)),
                  eps=1e-5, offset=0.0, round_last=False)  # fmt: skip
    assert differs(function, "y") == 0


def test_heads_of_a_wider_product_are_normed() -> None:
    """Rows of two strides: heads that are columns of a product of queries, keys and values."""
    function = Function()
    function.given("qkv", (5, 40), kind="temporary")
    x = View("qkv", (5, 3, 8), (40, 8, 1), 11)
    arguments = {"weight": function.given("w", (8,)), "eps": 1e-6, "offset": 0.0, "round_last": False}
    function.node("bringup.rms_norm.default", {"y": ((5, 3, 8), "float32")}, x=x, **arguments)
    assert differs(function, "y") <= TOLERANCES["float32"]


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(("channels", "pairs"), [(10, 5), (64, 32), (17, 4), (2, 1)])
def test_rope(channels: int, pairs: int, interleaved: bool, dtype: str) -> None:
    function = Function()
    function.given("qkv", (6, 3 * channels + 5), dtype, "temporary")
    x = View("qkv", (6, 3, channels), (3 * channels + 5, channels, 1), 2)
    cos, sin = function.given("cos", (6, pairs)), function.given("sin", (6, pairs))
    shapes = {"y": ((6, 3, channels), dtype)}
    function.node("bringup.rope.default", shapes, x_NHK=x, cos_NC=cos, sin_NC=sin, interleaved=interleaved)
    assert differs(function, "y") <= TOLERANCES[dtype]


@pytest.mark.parametrize("cached", ["float32", "bfloat16", "float16"])
def test_rows_go_to_their_slots(cached: str) -> None:
    """Other rows stay; what a narrower dtype cannot hold becomes its largest number, and NaN stays NaN."""
    function = Function()
    cache = function.given("cache", (20, 2, 7), cached, "state")
    slots = function.array("slots", np.array([3, 19, 0], np.int64), "int64", "step")
    rows = np.random.default_rng(1).standard_normal((3, 16)).astype(np.float32)
    rows[0, 3:6] = 3.4e38, -3.4e38, np.nan
    function.array("rows", rows, "float32", "temporary")
    view = View("rows", (3, 2, 7), (16, 7, 1), 2)
    function.node("bringup.write_cache.default", {}, cache_SGK=cache, slots_N=slots, rows_NGK=view)
    found = run(function.graph(), function.arrays, threads=5).read("cache")
    wanted = function.arrays["cache"].copy()
    heads = rows[:, 2:].reshape(3, 2, 7)
    if cached != "float32":
        largest = float(ml_dtypes.finfo(NUMPY[cached]).max)
        heads = np.clip(heads, -largest, largest)
    wanted[[3, 19, 0]] = heads.astype(wanted.dtype)
    np.testing.assert_array_equal(found.astype(np.float32), wanted.astype(np.float32))
