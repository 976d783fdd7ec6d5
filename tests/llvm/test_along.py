"""Products with 4-bit codes packed along columns, as of matrices whose rows are no multiple of 8, against float64."""

from __future__ import annotations

import numpy as np
import pytest

from bringup.graphs.core.form import Form
from bringup.graphs.core.packed_form import PackedForm
from tests.kernels.graphs import Function, far
from tests.kernels.quant_weights import Weight
from tests.llvm.native import MACHINES, run
from tests.llvm.products import ALONG, TOLERANCES, Product, in_int8

INTEGERS = [name for name, machine in MACHINES.items() if "avx2" in machine.features]
STEMS = {name: "quant_along" if name in INTEGERS else "quant_rows" for name in MACHINES}


def test_a_vocabulary_that_is_no_multiple_of_eight_is_packed_along_columns():
    form = Form(codes="uint4", block=(1, 32), scale="float16", minimum="float16")
    for rows, pack in ((50257, (1, 8)), (50264, (0, 8))):
        packed = PackedForm(
            form=form, shape=(rows, 768), block=(1, 32), outer=(), indexed=-1, groups=24,
            dtypes=("uint4", "float16", "float16"), dtype="float32",
        )  # fmt: skip
        assert packed.pack == pack


@pytest.mark.parametrize("activations", ["", "int8"])
@pytest.mark.parametrize(
    ("form", "machine"),
    [
        pytest.param(form, name, marks=() if name == "host" else pytest.mark.slow)
        for form in ALONG
        for name in MACHINES
        if form.endswith("8") or name == "host"
    ],
)
def test_one_row(form: str, activations: str, machine: str) -> None:
    """Rows after the last four; channels that fill vectors of 16 words."""
    product = Product(form, 1, columns=7, activations=activations)
    assert product.stem(machine) == STEMS[machine]
    product.check(machine)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize(("channels", "words"), [(384, (16, 8)), (320, (8, 8)), (96, (4, 4))])
@pytest.mark.parametrize("form", ["q4_1, along8", "mxfp4, along2", "int4-rows, along8"])
def test_channels_that_fill_smaller_vectors(form: str, channels: int, words: tuple[int, int], machine: str) -> None:
    product = Product(form, 1, columns=9, channels=channels)
    assert product.stem(machine) == STEMS[machine]
    if machine in INTEGERS:
        settings = dict(product.calls(machine)[0].kernel.values)
        assert settings["words"] == words[0 if MACHINES[machine].adds_bytes else 1]
    product.check(machine)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("columns", [1, 3, 4, 13])
@pytest.mark.parametrize("rows", [1, 3, 16])
def test_rows_of_int8(rows: int, columns: int, machine: str) -> None:
    product = Product("q4_1, along8", rows, columns=columns, gap=5, activations="int8")
    assert product.stem(machine) == STEMS[machine]
    product.check(machine)


@pytest.mark.parametrize(("form", "rows"), [("q4_1, along8", 2), ("q4_1, along8", 17), ("q4_k, along2", 9)])
@pytest.mark.parametrize("machine", ["host", "generic"])
def test_more_rows_of_floats(form: str, rows: int, machine: str) -> None:
    Product(form, rows, columns=21).check(machine)


@pytest.mark.parametrize("channels", [72, 100])
def test_channels_that_fill_no_vector(channels: int) -> None:
    product = Product("int4-rows, along2", 1, columns=5, channels=channels)
    assert product.stem() == "quant_rows"
    product.check("host")


@pytest.mark.parametrize(("form", "rows"), [("q4_1, along8", 1), ("mxfp4, along2", 2)])
def test_bfloat16(form: str, rows: int) -> None:
    for activations in ("", "int8"):
        Product(form, rows, columns=11, dtype="bfloat16", activations=activations).check("host")


@pytest.mark.parametrize("machine", INTEGERS)
@pytest.mark.parametrize("form", ["q4_0, along8", "mxfp4, along8", "int4-128, along2"])
def test_largest_codes_and_numbers(form: str, machine: str) -> None:
    """All of one sign: whole numbers come as near to an overflow as they can."""
    for size in (1.0, 127 / 64, float(np.nextafter(np.float32(127 / 64), np.float32(0)))):
        for sign in (1.0, -1.0):
            product = Product(form, 1, columns=5)
            product.f.arrays["w.codes"].view(np.uint8)[:] = 0x77 if form.startswith("mxfp4") else 0xFF
            ones = product.weight.found["codes"]
            ones[:] = 6.0 if form.startswith("mxfp4") else 15.0
            product.f.arrays |= {"x": np.full((1, 256), sign * size, np.float32), "b": np.zeros(5, np.float32)}
            product.x = product.f.arrays["x"].astype(np.float64)
            product.check(machine)


@pytest.mark.parametrize("machine", INTEGERS)
@pytest.mark.parametrize("size", [2.0**-140, 2.0**-99, 2.0**-20, 1.9921875, 2.0**100])
def test_numbers_of_any_size(size: float, machine: str) -> None:
    """Side by side: a word of columns has the factor of its largest number."""
    product = Product("q4_0, along8", 1, columns=6)
    x = np.linspace(-size, size, 256) * 10.0 ** product.f.random.integers(-12, 1, 256)
    product.f.arrays |= {"x": x[None].astype(np.float32), "b": np.zeros(6, np.float32)}
    numbers, weights = product.f.arrays["x"][0].astype(np.float64), product.weight.numbers
    bound = 2.0**-20 * np.abs(weights) @ np.abs(numbers) + 2.0**-22 * 1e-30 * np.abs(weights).sum(1)
    assert (np.abs(product.found(machine)[0] - weights @ numbers) <= bound).all()


@pytest.mark.parametrize("machine", INTEGERS)
@pytest.mark.parametrize("activations", ["", "int8"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_gives_no_number(value: float, activations: str, machine: str) -> None:
    product = Product("q4_1, along8", 1, columns=9, activations=activations, checked=False)
    product.f.arrays["x"][0, 100] = value
    assert not np.isfinite(product.found(machine)).any()


@pytest.mark.parametrize("activations", ["", "int8"])
def test_experts(activations: str) -> None:
    f = Function()
    x, bias = f.given("x", (5, 1, 64), kind="value"), f.given("b", (4, 23))
    chosen = np.array([2, 0, 0, 3, 1])
    expert = f.array("e", chosen, "int64", "value")
    weight = Weight(f, "w", ALONG["q4_1, along8"], (4, 23, 64), "float32", activations)
    shapes = {"y": ((5, 1, 23), "float32")}
    f.node("bringup.quant_experts.default", shapes, x_BRi=x, bias_eo=bias, expert_B=expert, **weight.arguments)
    given = f.arrays["x"].astype(np.float64)
    if activations:
        given = in_int8(f.arrays["x"].reshape(5, 64)).reshape(5, 1, 64)
    wanted = np.einsum("bri,boi->bro", given, weight.numbers[chosen]) + f.arrays["b"].astype(float)[chosen][:, None]
    for threads in (1, 5):
        found = run(f.graph("y"), f.arrays | {"y": np.full((5, 1, 23), np.nan, np.float32)}, "host", threads)
        assert far(found.read("y"), wanted) <= TOLERANCES["float32"]
