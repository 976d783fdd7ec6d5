"""Weights in few bits on the CPU against float64, from numbers worked out place by place."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernels.graphs import NUMPY, Function, far
from tests.kernels.quant_weights import CASES, Weight
from tests.llvm.native import run

# Largest |difference| over largest |result|: sums of float32; results of bfloat16 are rounded to it.
TOLERANCES = {"float32": 2e-6, "bfloat16": 4e-3}


@pytest.mark.parametrize("machine", ["host", "generic"])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("rows", [1, 3, 33])
def test_products(name: str, rows: int, machine: str) -> None:
    f = Function()
    x = f.given("x", (rows, 128), kind="value")
    bias = f.given("b", (48,))
    weight = Weight(f, "w", CASES[name], (48, 128), "float32")
    f.node("bringup.quant_linear.default", {"y": ((rows, 48), "float32")}, x=x, bias=bias, **weight.arguments)
    wanted = f.arrays["x"].astype(np.float64) @ weight.numbers.T + f.arrays["b"]
    given = f.arrays | {"y": np.full((rows, 48), np.nan, np.float32)}
    for threads in (1, 3, 64):
        assert far(run(f.graph("y"), given, machine, threads).read("y"), wanted) <= TOLERANCES["float32"]


_ = NUMPY
