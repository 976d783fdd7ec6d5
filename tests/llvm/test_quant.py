"""Weights in few bits on the CPU against float64, from numbers worked out place by place."""

from __future__ import annotations

import numpy as np
import pytest

from bringup.compile.llvm.select.registry import calls_of
from tests.kernels.graphs import NUMPY, Function, far
from tests.kernels.quant_weights import Weight
from tests.llvm.native import MACHINES, run
from tests.llvm.products import FORMS, TOLERANCES, Product

ON_GENERIC = ("int8-groups", "int4", "q4_1", "fp8-blocks", "fp8-e5m2", "nvfp4", "nf4", "act-order")
FEW = ("q4_k", "int4-along", "act-order", "fp8-blocks", "mxfp4", "int8-rows")


@pytest.mark.parametrize(("form", "machine"), [*((f, "host") for f in FORMS), *((f, "generic") for f in ON_GENERIC)])
def test_one_row(form: str, machine: str) -> None:
    Product(form, 1).check(machine)


@pytest.mark.parametrize(("form", "channels"), [("q4_1", 320), ("int4", 32 * 19), ("q4_k", 384), ("mxfp4", 96)])
def test_blocks_that_are_no_multiple_of_eight(form: str, channels: int) -> None:
    Product(form, 1, channels=channels).check("host")


@pytest.mark.parametrize(("form", "rows"), [*((form, 3) for form in FEW), ("q4_k", 6), ("int8-rows", 13)])
def test_few_rows(form: str, rows: int) -> None:
    """Whole tiles of rows, and what is left of one."""
    product = Product(form, rows, channels=256 if form == "q4_k" else 128, gap=5)
    assert product.stem() == "quant_rows"
    product.check("host")


@pytest.mark.parametrize(("form", "machine"), [*((form, "host") for form in FEW), ("q4_k", "generic")])
def test_many_rows(form: str, machine: str) -> None:
    """Rows that are no multiple of a tile's, and columns that are none of a panel's."""
    product = Product(form, 19, columns=40, channels=128, gap=3)
    assert product.stem(machine) == "quant_tiles"
    product.check(machine)


@pytest.mark.parametrize("rows", [1, 2, 11])
@pytest.mark.parametrize("form", ["int8-groups", "int4", "fp8-blocks"])
def test_odd_sizes(form: str, rows: int) -> None:
    """The last block is short, and rows are no multiple of a vector's."""
    columns = 8 if form == "int4" else 5
    Product(form, rows, columns=columns, channels=77).check("host")


@pytest.mark.parametrize("machine", ["host", "generic"])
def test_more_blocks_than_a_strip_has_at_once(machine: str) -> None:
    product = Product("q4_1", 5, channels=32 * 19, gap=3)
    assert product.stem(machine) == "quant_rows"
    product.check(machine)


@pytest.mark.parametrize(
    ("form", "rows"), [("q4_1", 1), ("fp8-blocks", 1), ("int4-zeros", 4), ("int4", 12), ("int4", 17)]
)
def test_bfloat16(form: str, rows: int) -> None:
    Product(form, rows, dtype="bfloat16").check("host")


def test_no_row() -> None:
    product = Product("q4_1", 0)
    graph = product.f.graph("y")
    assert calls_of(graph, graph.groups[0], MACHINES["host"]) == ()


@pytest.mark.parametrize("form", ["int4", "int4-zeros", "int4-rows", "int4-128", "q4_k"])
def test_whole_numbers_of_x_have_its_digits(form: str) -> None:
    """Numbers of any size side by side: a float32 sum errs by 2^-24 of its largest term as well."""
    product = Product(form, 1)
    if "avx2" not in MACHINES["host"].features:
        pytest.skip("for processors with AVX2")
    assert product.stem() == "quant_digits"
    scale = 10.0 ** product.f.random.integers(-20, 10, product.x.shape)
    product.f.arrays["x"] = (product.f.arrays["x"] * scale).astype(np.float32)
    product.x = product.f.arrays["x"].astype(np.float64)
    product.f.arrays["b"] *= 0
    product.check("host")
    product.f.arrays["x"] *= np.float32(1e-28)  # most of it below the normal numbers
    product.x = product.f.arrays["x"].astype(np.float64)
    assert far(product.found(), product.x @ product.weight.numbers.T) <= 1e-4
    product.f.arrays["x"][:] = 0
    assert not product.found().any()


@pytest.mark.parametrize("form", ["q4_1", "int8-groups"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_stays_so(form: str, value: float) -> None:
    product = Product(form, 1)
    product.f.arrays["x"][0, 100] = value
    assert not np.isfinite(product.found()).any()


def test_a_code_that_is_no_number_gives_none() -> None:
    product = Product("fp8-matrix", 1)
    product.f.arrays["w.codes"][7, 30] = 0x7F
    found = product.found()
    assert np.isnan(found[0, 7])
    assert np.isfinite(np.delete(found, 7)).all()


@pytest.mark.parametrize(("form", "rows"), [("int4", 1), ("mxfp4", 3), ("fp8-blocks", 1), ("int8-rows", 10)])
def test_experts(form: str, rows: int) -> None:
    """Blocks of rows, each by the matrix and the bias of its expert."""
    f = Function()
    x, bias = f.given("x", (5, rows, 64), kind="value"), f.given("b", (4, 24))
    chosen = np.array([2, 0, 0, 3, 1])
    expert = f.array("e", chosen, "int64", "value")
    weight = Weight(f, "w", FORMS[form], (4, 24, 64), "float32")
    shapes = {"y": ((5, rows, 24), "float32")}
    f.node("bringup.quant_experts.default", shapes, x_BRi=x, bias_eo=bias, expert_B=expert, **weight.arguments)
    wide = {name: f.arrays[name].astype(np.float64) for name in "xb"}
    wanted = np.einsum("bri,boi->bro", wide["x"], weight.numbers[chosen]) + wide["b"][chosen][:, None]
    for threads in (1, 5):
        found = run(f.graph("y"), f.arrays | {"y": np.full((5, rows, 24), np.nan, np.float32)}, "host", threads)
        assert far(found.read("y"), wanted) <= TOLERANCES["float32"]


@pytest.mark.parametrize(("form", "dtype"), [("q4_k", "float32"), ("int8-groups", "bfloat16"), ("nvfp4", "float32")])
def test_rows_of_a_table(form: str, dtype: str) -> None:
    f = Function()
    rows = np.array([7, 0, 7, 39])
    chosen = f.array("n", rows, "int64", "value")
    weight = Weight(f, "w", FORMS[form], (40, 256), dtype)
    f.node("bringup.quant_embedding.default", {"y": ((4, 256), dtype)}, rows_N=chosen, **weight.arguments)
    found = run(f.graph("y"), f.arrays | {"y": np.zeros((4, 256), NUMPY[dtype])}, threads=3).read("y")
    assert far(found, weight.numbers[rows]) <= TOLERANCES[dtype]


@pytest.mark.parametrize("shape", [(16, 96), (3, 16, 96)])
def test_a_whole_parameter(shape: tuple[int, ...]) -> None:
    f = Function()
    weight = Weight(f, "w", FORMS["int4-zeros"], shape, "float32")
    f.node("bringup.dequantise.default", {"y": (shape, "float32")}, **weight.arguments)
    found = run(f.graph("y"), f.arrays | {"y": np.zeros(shape, np.float32)}, threads=3).read("y")
    assert far(found, weight.numbers) <= TOLERANCES["float32"]
