"""Products with packed weights as functions of one node, and their results in float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from bringup.compile.llvm.select.call import Call
from bringup.compile.llvm.select.registry import calls_of
from bringup.compile.schedule.graph.op_graph import View
from bringup.graphs.core.form import Form
from tests.kernels.graphs import NUMPY, Function, far
from tests.kernels.quant_weights import CASES, Case, Weight
from tests.llvm.native import MACHINES, prepared, run

# Largest |difference| over largest |result|: sums of float32; results of bfloat16 are rounded to it.
TOLERANCES = {"float32": 2e-6, "bfloat16": 4e-3}
FORMS = CASES | {
    "q4_0": Case(Form(codes="uint4", block=(1, 32), scale="float16", offset=8), 2, 8),
    "q6_k": Case(Form(codes="uint8", block=(1, 16), scale="int8", offset=32, outer=(1, 256))),
    "int4-rows": Case(Form(codes="int4", block=(1, 0)), 2, 8),
    "int4-128": Case(Form(codes="uint4", block=(1, 128), scale="float16", zero="uint4"), 2, 8),
}
# The same with the codes of 8 adjacent columns in a word, or of two in a byte.
ALONG = {
    f"{name}, along{values}": replace(FORMS[name], axis=1, values=values)
    for name in ("q4_0", "q4_1", "q4_k", "int4", "int4-rows", "int4-128", "int4-zeros", "mxfp4", "nvfp4")
    for values in (8, 2)
}


def in_int8(x: np.ndarray) -> np.ndarray:
    """Rows in float64 as bytes with a scale for 32 columns, number by number, each step rounded to float32."""
    out = np.zeros(x.shape)
    for row, at in np.ndindex(x.shape):
        block = x[row, at // 32 * 32 : at // 32 * 32 + 32].astype(np.float32)
        largest = max(np.abs(block).max(), np.float32(1e-30))
        code = np.rint(x[row, at].astype(np.float32) * (np.float32(127) / largest))
        out[row, at] = float(code) * float(largest / np.float32(127))
    return out


class Product:
    """x · weightᵀ + bias of a weight; the rows of x are `gap` elements apart, and rounded to `activations`."""

    def __init__(
        self, form: str, rows: int, *, columns: int = 48, channels: int = 256, dtype: str = "float32", gap: int = 0,
        activations: str = "", checked: bool = True,
    ) -> None:  # fmt: skip
        self.f, self.rows, self.columns, self.dtype = Function(), rows, columns, dtype
        self.f.given("x", (rows, channels + gap), dtype, "temporary")
        x = View("x", (rows, channels), (channels + gap, 1), gap)
        bias = self.f.given("b", (columns,), dtype)
        self.weight = Weight(self.f, "w", (FORMS | ALONG)[form], (columns, channels), dtype, activations)
        shapes = {"y": ((rows, columns), dtype)}
        self.f.node("bringup.quant_linear.default", shapes, x=x, bias=bias, **self.weight.arguments)
        self.x = self.f.arrays["x"].astype(np.float64)[:, gap:]
        if activations and checked:
            self.x = in_int8(self.f.arrays["x"][:, gap:])

    def calls(self, machine: str = "host") -> tuple[Call, ...]:
        graph = self.f.graph("y")
        calls = calls_of(graph, graph.groups[0], MACHINES[machine])
        assert calls is not None
        return calls

    def stem(self, machine: str = "host") -> str:
        """Of the kernel that takes it."""
        return self.calls(machine)[0].kernel.stem

    def found(self, machine: str = "host", threads: int = 1) -> np.ndarray:
        given = self.f.arrays | {"y": np.full((self.rows, self.columns), np.nan, NUMPY[self.dtype])}
        return run(self.f.graph("y"), given, machine, threads).read("y")

    def prepared(self) -> Callable[[], None]:
        """What runs it by one thread, again and again."""
        given = self.f.arrays | {"y": np.zeros((self.rows, self.columns), NUMPY[self.dtype])}
        return prepared(self.calls(), given)

    def check(self, machine: str) -> None:
        """By one thread, some, and more than there are words of columns."""
        wanted = self.x @ self.weight.numbers.T + self.f.arrays["b"].astype(np.float64)
        for threads in (1, 3, 64):
            assert far(self.found(machine, threads), wanted) <= TOLERANCES[self.dtype]
