"""Products of activations in int8 with weights in few bits, against float64 and numbers rounded one by one by numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from bringup.graphs.ops.quant_linear import in_int8 as in_torch
from tests.kernels.graphs import Function, far
from tests.kernels.quant_weights import Weight
from tests.llvm.native import run
from tests.llvm.products import FORMS, TOLERANCES, Product, in_int8

# What each form of a row becomes where there is AVX2; others are multiplied as floats that were rounded.
KERNELS = dict.fromkeys(
    ("q4_0", "q4_1", "q4_k", "int4", "int4-offset", "int4-rows", "int4-128", "mxfp4"), "quant_digits"
)
KERNELS |= dict.fromkeys(("int8-groups", "int8-rows", "q6_k"), "quant_bytes")
OTHERS = ("int4-zeros", "int4-along", "nvfp4", "nf4", "fp8-blocks", "act-order")
ON_GENERIC = ("q4_1", "int8-groups", "int8-rows", "q6_k", "nf4")


def product(form: str, rows: int, **settings: Any) -> Product:
    return Product(form, rows, activations="int8", **settings)


@pytest.mark.parametrize(
    ("form", "machine"), [*((f, "host") for f in (*KERNELS, *OTHERS)), *((f, "generic") for f in ON_GENERIC)]
)
def test_one_row(form: str, machine: str) -> None:
    product(form, 1).check(machine)


@pytest.mark.parametrize(("form", "stem"), KERNELS.items())
def test_few_rows_are_whole_numbers(form: str, stem: str) -> None:
    few = product(form, 3, channels=32 * 12 if form != "int4-128" else 256, gap=5)
    assert few.stem() == stem
    few.check("host")


@pytest.mark.parametrize("form", ["q4_1", "q6_k", "nf4"])
@pytest.mark.parametrize("machine", ["host", "generic"])
def test_many_rows(form: str, machine: str) -> None:
    many = product(form, 19, columns=40, gap=3)
    assert many.stem(machine) == "quant_tiles"
    many.check(machine)


@pytest.mark.parametrize(("form", "rows"), [("q4_1", 1), ("int8-groups", 2), ("q4_k", 12)])
def test_bfloat16(form: str, rows: int) -> None:
    product(form, rows, dtype="bfloat16").check("host")


@pytest.mark.parametrize(("form", "rows"), [("int8-groups", 1), ("int8-rows", 2), ("fp8-blocks", 11)])
def test_columns_that_are_no_multiple_of_32(form: str, rows: int) -> None:
    product(form, rows, columns=5, channels=77).check("host")


@pytest.mark.parametrize("machine", ["host", "generic"])
@pytest.mark.parametrize("form", ["int8-rows", "q4_1"])
def test_codes_are_those_of_the_operation(form: str, machine: str) -> None:
    """A weight of one code a row gives that column's code times its scale: the same bits as torch and numpy have."""
    one = product(form, 1, columns=64, channels=64)
    codes, scales, bias = (one.f.arrays[name] for name in ("w.codes", "w.scales", "b"))
    bias[:] = 0
    units = np.eye(64, dtype=np.int64)
    if form == "int8-rows":
        codes[:], scales[:] = units, 1
    else:
        words = sum(units.reshape(8, 8, 64)[:, place].astype(np.uint64) << np.uint64(4 * place) for place in range(8))
        codes[:], scales[:] = np.asarray(words).astype(np.uint32).view(np.int32), 1
        one.f.arrays["w.minimums"][:] = 0
    one.f.arrays["x"][0, 32:] *= 10.0 ** one.f.random.integers(-3, 3, 32)
    one.f.arrays["x"][0, :3] = 0.5, 127, 1.5  # halves between two codes
    one.f.arrays["x"][0, 3:32] = one.f.arrays["x"][0, 3:32].clip(-3, 3)
    expected = in_int8(one.f.arrays["x"]).astype(np.float32)
    assert expected[0, :3].tolist() == [0, 127, 2]
    np.testing.assert_array_equal(in_torch(torch.from_numpy(one.f.arrays["x"])).numpy(), expected)
    np.testing.assert_array_equal(one.found(machine), expected)


@pytest.mark.parametrize("machine", ["host", "generic"])
@pytest.mark.parametrize("form", ["q4_1", "int8-rows", "nf4"])
def test_extremes(form: str, machine: str) -> None:
    """Rows of zeros, of the largest codes throughout, and of numbers near the smallest and the largest floats."""
    one = product(form, 5, channels=512)
    x = one.f.arrays["x"]
    x[0], x[1], x[2], x[3] = 0, 127, x[2] * np.float32(1e-30), np.float32(1e30) * np.sign(x[3])
    one.f.arrays["b"][:] = 0
    one.x = in_int8(x)
    found = one.found(machine)
    assert not found[0].any()
    for row in range(1, 5):
        assert far(found[row], one.x[row] @ one.weight.numbers.T) <= TOLERANCES["float32"]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(("form", "rows"), [("q4_1", 1), ("int8-groups", 1), ("nf4", 1), ("q4_1", 12)])
def test_what_is_not_finite_gives_no_number(form: str, rows: int, value: float) -> None:
    one = product(form, rows)
    one.f.arrays["x"][0, 100] = value
    found = one.found()
    assert np.isnan(found[0]).all()
    assert np.isfinite(found[1:]).all()


@pytest.mark.parametrize(("form", "rows"), [("int4", 2), ("mxfp4", 3), ("int8-groups", 1), ("int8-rows", 10)])
def test_experts(form: str, rows: int) -> None:
    f = Function()
    x, bias = f.given("x", (5, rows, 64), kind="value"), f.given("b", (4, 24))
    chosen = np.array([2, 0, 0, 3, 1])
    expert = f.array("e", chosen, "int64", "value")
    weight = Weight(f, "w", FORMS[form], (4, 24, 64), "float32", "int8")
    shapes = {"y": ((5, rows, 24), "float32")}
    f.node("bringup.quant_experts.default", shapes, x_BRi=x, bias_eo=bias, expert_B=expert, **weight.arguments)
    rounded = in_int8(f.arrays["x"].reshape(-1, 64)).reshape(5, rows, 64)
    wanted = np.einsum("bri,boi->bro", rounded, weight.numbers[chosen]) + f.arrays["b"].astype(float)[chosen][:, None]
    for threads in (1, 5):
        found = run(f.graph("y"), f.arrays | {"y": np.full((5, rows, 24), np.nan, np.float32)}, "host", threads)
        assert far(found.read("y"), wanted) <= TOLERANCES["float32"]


@pytest.mark.parametrize("form", ["q4_1", "nf4", "int8-groups"])
def test_the_operation_itself(form: str) -> None:
    """By torch, in one piece and in pieces."""
    for rows in (1, 3):
        one = product(form, rows)
        wanted = one.x @ one.weight.numbers.T + one.f.arrays["b"].astype(np.float64)
        assert far(one.f.expected(wide=False)["y"], wanted) <= TOLERANCES["float32"]
