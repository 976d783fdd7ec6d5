"""Element-wise operations, copies and look-ups on the CPU against torch, and elementary functions against float64."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from bringup.compile.llvm.select.registry import calls_of
from bringup.compile.schedule.graph.op_graph import View
from tests.kernels.graphs import NUMPY, Function, far
from tests.llvm.native import MACHINES, run

NEAR = 3e-7  # of functions, relative to the result or, for small ones, to 1
EDGES = [0.0, -0.0, 1e-30, -1e-30, 0.624, 0.626, -0.625, 1.0, 20.0, -20.0, 88.0, -87.0, 1e4, -1e4, math.inf, -math.inf]
EXACT = {
    "exp": np.exp,
    "tanh": np.tanh,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "silu": lambda x: np.where(np.isneginf(x), np.nan, x / (1 + np.exp(-x))),
    "gelu": lambda x: torch.nn.functional.gelu(torch.from_numpy(x)).numpy(),
    "gelu_tanh": lambda x: torch.nn.functional.gelu(torch.from_numpy(x), approximate="tanh").numpy(),
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "relu": lambda x: np.maximum(x, 0),
}


def outputs(function: Function, *names: str, machine: str = "host", threads: int = 3) -> list[np.ndarray]:
    empty = {name: np.zeros(function.buffers[name].shape, NUMPY[function.buffers[name].dtype]) for name in names}
    memory = run(function.graph(*names), function.arrays | empty, machine, threads)
    return [memory.read(name) for name in names]


@pytest.mark.parametrize("machine", ["host", "generic"])
@pytest.mark.parametrize("name", EXACT)
def test_functions(name: str, machine: str) -> None:
    x = np.concatenate([EDGES, np.linspace(-90, 90, 4001), np.linspace(-2, 2, 1001)]).astype(np.float32)
    if "sqrt" in name:
        x = np.abs(x)
    function = Function()
    function.node(f"aten.{name}.default", {"y": (x.shape, "float32")}, self=function.array("x", x, "float32"))
    (found,) = outputs(function, "y", machine=machine)
    with np.errstate(all="ignore"):
        wanted = EXACT[name](x.astype(np.float64))
        wanted = np.where(np.abs(wanted) > np.finfo(np.float32).max, np.copysign(np.inf, wanted), wanted)
        near = np.abs(found - wanted) <= NEAR * np.maximum(1, np.abs(wanted))
    if name in ("gelu", "gelu_tanh", "silu"):  # -inf · 0
        near |= np.isneginf(x)
    assert (near | (found == wanted) | (np.isnan(found) & np.isnan(wanted))).all(), x[~near]


@pytest.mark.parametrize("machine", ["host", "generic"])
def test_float16_is_that_of_numpy(machine: str) -> None:
    """Every float16, and float32 numbers about every two of them: halfway, a bit more, a bit less."""
    halves = np.arange(1 << 16).astype(np.uint16).view(np.float16)
    finite = np.sort(halves[np.isfinite(halves)].astype(np.float32))
    between = (finite[:-1] + finite[1:]) / 2
    about = [np.nextafter(between, np.float32(far)) for far in (-np.inf, np.inf)]
    ends = np.array([65519.99, 65520, 1e30, -1e30, np.inf, -np.inf, np.nan, 1e-30, -0.0], np.float32)
    for x, dtype in ((halves, "float32"), (np.concatenate([between, *about, ends]), "float16")):
        function = Function()
        given = function.array("x", x, x.dtype.name)
        function.node("aten.to.dtype", {"y": (x.shape, dtype)}, self=given)
        (found,) = outputs(function, "y", machine=machine)
        with np.errstate(over="ignore"):
            wanted = x.astype(NUMPY[dtype])
        same = found.view(f"u{found.itemsize}") == wanted.view(f"u{wanted.itemsize}")
        assert (same | (np.isnan(found) & np.isnan(wanted))).all()


def test_nan_stays_nan() -> None:
    x = np.array([np.nan, 1, np.nan], np.float32)
    for name in (*EXACT, "neg"):
        function = Function()
        function.node(f"aten.{name}.default", {"y": (x.shape, "float32")}, self=function.array("x", x, "float32"))
        assert np.isnan(outputs(function, "y")[0]).tolist() == [True, False, True], name


def test_a_chain_is_rounded_as_its_operations_are() -> None:
    """A gated MLP's product in bfloat16, with halves of one buffer: the same bits as torch's."""
    function = Function()
    function.given("h", (5, 38), "bfloat16", "temporary")
    gate, up = View("h", (5, 19), (38, 1)), View("h", (5, 19), (38, 1), 19)
    a = function.node("bringup.silu.default", {"a": ((5, 19), "bfloat16")}, x=gate)
    function.node("aten.mul.Tensor", {"y": ((5, 19), "bfloat16")}, self=a, other=up)
    (found,) = outputs(function, "y")
    np.testing.assert_array_equal(found.astype(np.float64), function.expected(wide=False)["y"])


def test_broadcast_and_alpha() -> None:
    function = Function()
    x, y = function.given("x", (4, 3, 5)), function.given("y", (3, 1))
    function.node("aten.sub.Tensor", {"z": ((4, 3, 5), "float32")}, self=x, other=y, alpha=2)
    assert far(outputs(function, "z")[0], function.expected()["z"]) < NEAR


def test_a_residual_sum_is_written_over_its_operand() -> None:
    """As a memory plan may place it: both buffers are one."""
    function = Function()
    x, y = function.given("x", (3, 50)), function.given("y", (3, 50))
    function.node("aten.add.Tensor", {"z": ((3, 50), "float32")}, self=x, other=y, alpha=1)
    graph = function.graph("z")
    call = calls_of(graph, graph.groups[0], MACHINES["host"])
    assert call is not None
    wanted = function.arrays["x"] + function.arrays["y"]

    class Over(dict):
        """Arrays by name."""

    from tests.llvm import native

    memory = native.Memory(function.arrays)
    memory._raw["z"], memory._like["z"] = memory._raw["x"], memory._like["x"]
    native._run(call[0], memory, "host", 2)
    memory.check()
    np.testing.assert_array_equal(memory.read("x"), wanted)


@pytest.mark.parametrize("op", ["aten.index_select.default", "aten.index.Tensor"])
def test_rows_that_an_index_names(op: str) -> None:
    """Two look-ups and their sum in one launch, as an embedding with learned positions."""
    function = Function()
    table, positions = function.given("t", (11, 6)), function.given("p", (9, 6))
    first = function.array("i", np.array([10, 0, 3], np.int64), "int64", "step")
    last = function.array("j", np.array([0, -1 if "Tensor" in op else 8, 2], np.int64), "int64", "step")
    rows: list[View] = []
    for name, source, numbers in (("a", table, first), ("b", positions, last)):
        own = {"indices": (numbers,)} if "Tensor" in op else {"dim": 0, "index": numbers}
        rows.append(function.node(op, {name: ((3, 6), "float32")}, self=source, **own))
    function.node("aten.add.Tensor", {"y": ((3, 6), "float32")}, self=rows[0], other=rows[1], alpha=1)
    (found,) = outputs(function, "y")
    np.testing.assert_array_equal(found, function.expected()["y"].astype(np.float32))


def test_whole_numbers_masks_and_parts() -> None:
    function = Function()
    x = function.array("x", np.arange(-6, 6, dtype=np.int64).reshape(3, 4), "int64", "step")
    y = function.node("aten.clamp.default", {"y": ((3, 4), "int64")}, self=x, min=-2, max=3)
    m = function.node("aten.gt.Scalar", {"m": ((3, 4), "bool")}, self=y, other=0)
    n = function.node("aten.bitwise_not.default", {"n": ((3, 4), "bool")}, self=m)
    w = function.node("aten.where.self", {"w": ((3, 4), "int64")}, condition=n, self=x, other=y)
    function.node("aten.cat.default", {"z": ((3, 8), "int64")}, tensors=(w, y), dim=-1)
    found = dict(zip("zmn", outputs(function, "z", "m", "n"), strict=True))
    for name, array in found.items():
        np.testing.assert_array_equal(array, function.expected()[name].astype(array.dtype))


@pytest.mark.parametrize("divisor", [5, -3])
def test_the_remainder_has_the_sign_of_the_divisor(divisor: int) -> None:
    function = Function()
    x = function.array("x", np.arange(-9, 9, dtype=np.int64), "int64", "step")
    function.node("aten.remainder.Scalar", {"y": ((18,), "int64")}, self=x, other=divisor)
    assert outputs(function, "y")[0].tolist() == [n % divisor for n in range(-9, 9)]


@pytest.mark.parametrize("keepdim", [False, True])
def test_the_sum_of_a_short_axis(keepdim: bool) -> None:
    """Which sequence each token is of: the number of sequences that begin before it."""
    function = Function()
    tokens = function.array("t", np.arange(7, dtype=np.int64)[:, None], "int64", "step")
    starts = function.array("s", np.array([[3, 3, 6]], np.int64), "int64", "step")
    begun = function.node("aten.ge.Tensor", {"b": ((7, 3), "bool")}, self=tokens, other=starts)
    shape = (7, 1) if keepdim else (7,)
    function.node("aten.sum.dim_IntList", {"y": (shape, "int64")}, self=begun, dim=(-1,), keepdim=keepdim, dtype=None)
    assert outputs(function, "y")[0].ravel().tolist() == [0, 0, 0, 2, 2, 2, 3]


def test_a_transposed_copy_of_what_the_group_gives() -> None:
    function = Function()
    x = function.given("x", (4, 6))
    function.node("aten.neg.default", {"y": ((4, 6), "float32")}, self=x)
    function.node("aten.clone.default", {"z": ((3, 8), "float32")}, self=View("y", (3, 8), (8, 1)), memory_format=None)
    function.node("aten.clone.default", {"t": ((6, 4), "float32")}, self=View("y", (6, 4), (1, 6)), memory_format=None)
    for name, array in zip("zt", outputs(function, "z", "t"), strict=True):
        np.testing.assert_array_equal(array, function.expected()[name].astype(np.float32))
