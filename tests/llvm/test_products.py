"""Products on the CPU against float64 by torch: odd sizes, strided rows, one thread and more than columns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from bringup.compile.schedule.graph.op_graph import View
from tests.kernels.graphs import NUMPY, Function, far
from tests.llvm.native import MACHINES, run

# Largest |difference| over largest |result|: sums of float32; narrower results are rounded.
TOLERANCES = {"float32": 1e-6, "bfloat16": 4e-3, "float16": 5e-4}


@dataclass(frozen=True, kw_only=True)
class Case:
    """`gap`: elements between the rows of x."""

    rows: int
    columns: int
    channels: int
    dtype: str = "float32"
    has_bias: bool = True
    gap: int = 0


CASES = {
    "one_row": Case(rows=1, columns=37, channels=131),
    "one_number": Case(rows=1, columns=1, channels=1),
    "one_row_bfloat16": Case(rows=1, columns=50, channels=300, dtype="bfloat16", has_bias=False),
    "one_row_float16": Case(rows=1, columns=50, channels=300, dtype="float16"),
    "few_rows": Case(rows=3, columns=19, channels=77, gap=5),
    "few_rows_bfloat16": Case(rows=8, columns=9, channels=33, dtype="bfloat16"),
    "no_row": Case(rows=0, columns=9, channels=33),
    "tiles": Case(rows=64, columns=96, channels=64),
    "odd_tiles": Case(rows=37, columns=101, channels=53, gap=7),
    "narrow_tiles": Case(rows=9, columns=5, channels=3, has_bias=False),
    "tiles_bfloat16": Case(rows=33, columns=70, channels=129, dtype="bfloat16"),
    "blocks_bfloat16": Case(rows=263, columns=30, channels=9, dtype="bfloat16", gap=3),
    "ahead_bfloat16": Case(rows=2, columns=3, channels=1100, dtype="bfloat16"),
    "tiles_float16": Case(rows=13, columns=31, channels=45, dtype="float16", gap=3),
    "large_rows": Case(rows=8, columns=11, channels=837, gap=3),
    "large_rows_bfloat16": Case(rows=7, columns=10, channels=1800, dtype="bfloat16", gap=1),
    "long_row_bfloat16": Case(rows=1, columns=7, channels=128 * 5 + 32 * 3 + 21, dtype="bfloat16"),
    "many_panels": Case(rows=12, columns=400, channels=24),
}


def function_of(case: Case) -> Function:
    function = Function()
    width = case.channels + case.gap
    function.given("x", (case.rows, width), case.dtype, "temporary")
    x = View("x", (case.rows, case.channels), (width, 1), case.gap)
    weight = function.given("w", (case.columns, case.channels), case.dtype)
    bias = function.given("b", (case.columns,), case.dtype) if case.has_bias else None
    shapes = {"y": ((case.rows, case.columns), case.dtype)}
    function.node("bringup.linear.default", shapes, x=x, weight=weight, bias=bias)
    return function


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("name", CASES)
def test_products(name: str, machine: str) -> None:
    case = CASES[name]
    function = function_of(case)
    given = function.arrays | {"y": np.full((case.rows, case.columns), np.nan, NUMPY[case.dtype])}
    for threads in (1, 3, 64):
        found = run(function.graph("y"), given, machine, threads).read("y")
        if case.rows:
            assert far(found, function.expected()["y"]) <= TOLERANCES[case.dtype]


@pytest.mark.parametrize("machine", ["host", "generic"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("rows", [1, 3, 11])
@pytest.mark.parametrize("turned", [False, True], ids=["by columns", "by channels"])
def test_products_of_batches(turned: bool, rows: int, dtype: str, machine: str) -> None:
    """Heads of one buffer, as MLA has them: by a matrix of each head, or by its transpose."""
    heads, channels, columns = 3, 19, 45
    function = Function()
    function.given("x", (rows, heads, channels + 2), dtype, "temporary")
    x = View("x", (heads, rows, channels), (channels + 2, heads * (channels + 2), 1), 2)
    function.given("w", (heads, columns, channels) if turned else (heads, channels, columns), dtype)
    strides = (channels * columns, 1, channels) if turned else (channels * columns, columns, 1)
    matrices = View("w", (heads, channels, columns), strides)
    function.node("aten.bmm.default", {"y": ((heads, rows, columns), dtype)}, self=x, mat2=matrices)
    for threads in (1, 3, 64):
        found = run(function.graph("y"), function.started(), machine, threads).read("y")
        assert far(found, function.expected()["y"]) <= TOLERANCES[dtype]
