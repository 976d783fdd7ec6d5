"""Products with matrices in few bits, with all that is fused into them, on the emulator against float64."""

from __future__ import annotations

import numpy as np
import pytest

from bringup.compile.kernels.select.registry import calls_of
from bringup.compile.schedule.costs import cost_of
from bringup.compile.schedule.graph.op_graph import View, whole
from tests.kernels.graphs import Function, far
from tests.kernels.quant_weights import CASES, Weight
from tests.kernels.test_products import OF, layer_norm

NEAR = {"float32": 4e-6, "bfloat16": 1.6e-2, "float16": 2e-3}
QUANT_LINEAR = "bringup.quant_linear.default"


def quant_linear(f: Function, x: View, case: str, columns: int, name: str = "y", dtype: str = "float32") -> Weight:
    weight = Weight(f, f"{name}.w", CASES[case], (columns, x.shape[-1]), dtype)
    f.node(QUANT_LINEAR, {name: ((*x.shape[:-1], columns), dtype)}, x=x, bias=None, **weight.arguments)
    return weight


OFTEN = ("int8-rows", "int4", "q4_1", "fp8-blocks", "mxfp4")  # whose tiles `make test` has as well


@pytest.mark.parametrize(
    ("case", "rows"),
    [(case, 1) for case in CASES]
    + [pytest.param(case, 5, marks=() if case in OFTEN else pytest.mark.slow) for case in CASES],
)
def test_each_form(case: str, rows: int) -> None:
    f = Function()
    x = f.given("x", (rows, 128), kind="value")
    weight = quant_linear(f, x, case, 48)
    graph = f.graph("y")
    machine = f.emulated(graph, "sm_90")
    assert far(machine.read("y"), f.arrays["x"].astype(np.float64) @ weight.numbers.T) < NEAR["float32"]
    calls = calls_of(graph, graph.groups[0], "sm_90")
    assert calls is not None
    assert [call.kernel.stem for call in calls] == ["quant.quant_linear" if rows == 1 else "quant.quant_linear_tile"]


@pytest.mark.parametrize("rows", [1, 5])
def test_gate_and_up(rows: int) -> None:
    """Two matrices that read the same rows, and what their product is multiplied by."""
    f, inner, channels = Function(), 40, 96
    x = f.given("x", (rows, channels), kind="value")
    gate, up = (quant_linear(f, x, "int4", inner, name) for name in ("gate", "up"))
    shape = ((rows, inner), "float32")
    views = [View(name, (rows, inner), (inner, 1), 0) for name in ("gate", "up")]
    act = f.node("bringup.silu.default", {"act": shape}, x=views[0])
    f.node("aten.mul.Tensor", {"out": shape}, self=act, other=views[1])
    given = f.arrays["x"].astype(np.float64)
    one, other = (given @ weight.numbers.T for weight in (gate, up))
    assert far(f.emulated(f.graph("out"), "sm_90").read("out"), one / (1 + np.exp(-one)) * other) < 1e-5


@pytest.mark.parametrize(("rows", "dtype"), [(1, "bfloat16"), (3, "bfloat16"), (40, "float16")])
def test_norm_product_and_residual(rows: int, dtype: str) -> None:
    """Columns that no tile divides, of words of two numbers."""
    f, columns = Function(), 70
    x = f.given("x", (rows, 96), dtype, "value")
    weight = quant_linear(
        f, layer_norm(f, x, "n", dtype) if rows <= 16 else x, "int4-signed-zeros", columns, "y", dtype
    )
    residual = f.given("r", (rows, columns), dtype, "value")
    f.node("aten.add.Tensor", {"out": ((rows, columns), dtype)}, self=residual, other=whole(f.buffers["y"]), alpha=1)
    machine = f.emulated(f.graph("out"), OF[dtype])
    given = {name: np.asarray(array, np.float64) for name, array in f.arrays.items() if "float" in array.dtype.name}
    row = given["x"]
    if rows <= 16:
        row = (row - row.mean(1, keepdims=True)) / np.sqrt(row.var(1, keepdims=True) + 1e-5)
        row = row * given["n.weight"] + given["n.bias"]
    assert far(machine.read("out"), row @ weight.numbers.T + given["r"]) < NEAR[dtype]


@pytest.mark.parametrize("case", ["int4-offset", "fp8-blocks"])
@pytest.mark.parametrize(("blocks", "rows"), [(4, 1), (3, 18)])
def test_experts(case: str, blocks: int, rows: int) -> None:
    """Blocks of rows, each with the matrix of its expert, and a bias of it."""
    f, experts, inner, channels = Function(), 5, 32, 64
    x = f.given("x", (blocks, rows, channels), kind="value")
    chosen = f.array("step:e", np.array([3, 0, 3, 4])[:blocks], "int64", "step")
    weight = Weight(f, "w", CASES[case], (experts, inner, channels), "float32")
    bias = f.given("b", (experts, inner))
    shapes = {"y": ((blocks, rows, inner), "float32")}
    f.node("bringup.quant_experts.default", shapes, x_BRi=x, bias_eo=bias, expert_B=chosen, **weight.arguments)
    numbers, of = weight.numbers, f.arrays["step:e"]
    expected = np.einsum("bri,boi->bro", f.arrays["x"].astype(np.float64), numbers[of])
    found = f.emulated(f.graph("y"), "sm_90").read("y")
    assert far(found, expected + f.arrays["b"].astype(np.float64)[of][:, None]) < NEAR["float32"]


@pytest.mark.parametrize("case", ["int8-rows", "q4_k", "mxfp4", "fp8-blocks", "nf4"])
def test_rows_of_a_table(case: str) -> None:
    f = Function()
    rows = f.array("step:tokens", np.array([7, 0, 31, 30, 7]), "int64", "step")
    weight = Weight(f, "w", CASES[case], (32, 128), "float32")
    f.node("bringup.quant_embedding.default", {"y": ((5, 128), "float32")}, rows_N=rows, **weight.arguments)
    found = f.emulated(f.graph("y"), "sm_90").read("y")
    assert far(found, weight.numbers[f.arrays["step:tokens"]]) < 1e-6


def test_a_whole_matrix() -> None:
    f = Function()
    weight = Weight(f, "w", CASES["int4-zeros"], (24, 32), "bfloat16")
    f.node("bringup.dequantise.default", {"y": ((24, 32), "bfloat16")}, **weight.arguments)
    assert far(f.emulated(f.graph("y"), "sm_90").read("y"), weight.numbers) < 2**-8


@pytest.mark.parametrize("case", ["int4", "int8-groups", "fp8-blocks", "q4_1"])
def test_one_row_reads_its_weights_once(case: str) -> None:
    """Bytes of a decode product: codes, and what there is of a block, once; x once for each program."""
    f, channels, columns = Function(), 512, 96
    x = f.given("x", (1, channels), kind="value")
    weight = quant_linear(f, x, case, columns)
    graph = f.graph("y")
    f.emulated(graph, "sm_90")
    calls = calls_of(graph, graph.groups[0], "sm_90")
    assert calls is not None
    scales = weight.nbytes - f.arrays["y.w.codes"].nbytes
    most = calls[0].grid[0] if case == "fp8-blocks" else 1  # programs that share rows of blocks
    assert f.run.bytes.read <= f.arrays["y.w.codes"].nbytes + scales * most + channels * 4 * calls[0].grid[0]
    assert f.run.bytes.written == columns * 4
    table = 256 * 4 if case == "fp8-blocks" else 0  # counted, though kernels know the numbers of float8
    assert cost_of(graph, graph.groups[0], 1).weights == weight.nbytes + table
