"""Products with matrices in few bits, with all that is fused into them, on the emulator against float64."""

from __future__ import annotations

import numpy as np
import pytest

from bringup.compile.kernels.select.registry import calls_of
from bringup.compile.schedule.graph.op_graph import View
from tests.kernels.graphs import Function, far
from tests.kernels.quant_weights import CASES, Weight

NEAR = {"float32": 4e-6, "bfloat16": 1.6e-2, "float16": 2e-3}
QUANT_LINEAR = "bringup.quant_linear.default"


def quant_linear(f: Function, x: View, case: str, columns: int, name: str = "y", dtype: str = "float32") -> Weight:
    weight = Weight(f, f"{name}.w", CASES[case], (columns, x.shape[-1]), dtype)
    f.node(QUANT_LINEAR, {name: ((*x.shape[:-1], columns), dtype)}, x=x, bias=None, **weight.arguments)
    return weight


@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("case", CASES)
def test_each_form(case: str, rows: int) -> None:
    f = Function()
    x = f.given("x", (rows, 128), kind="value")
    weight = quant_linear(f, x, case, 48)
    graph = f.graph("y")
    machine = f.emulated(graph, "sm_90")
    assert far(machine.read("y"), f.arrays["x"].astype(np.float64) @ weight.numbers.T) < NEAR["float32"]
    calls = calls_of(graph, graph.groups[0], "sm_90")
    assert calls is not None
    assert [call.kernel.stem for call in calls] == ["quant_linear" if rows == 1 else "quant_linear_tile"]


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
