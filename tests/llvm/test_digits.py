"""Products in digits of a byte: numbers whose rounding to a group's whole numbers would be seen in the result."""

from __future__ import annotations

import numpy as np
import pytest

from bringup.graphs.ops.quant_linear import LEAST
from tests.kernels.graphs import NUMPY
from tests.llvm.products import Product

HALF_STEP = {"float32": 2.0**-24, "bfloat16": 2.0**-9, "float16": 2.0**-12}  # of a result, as a part of it
SUMS = (
    2.0**-20
)  # of float32 sums, as a part of the terms' sizes: codes before their zero point are up to 15 times as large


def differences(form: str, x: np.ndarray, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """Of 48 results from float64, and the bound of each."""
    product = Product(form, 1, channels=x.size, dtype=dtype)
    product.f.arrays |= {"x": x[None].astype(NUMPY[dtype]), "b": np.zeros(48, NUMPY[dtype])}
    assert product.stem() == "quant_digits"
    numbers, weights = product.f.arrays["x"][0].astype(np.float64), product.weight.numbers
    wanted, sizes = weights @ numbers, np.abs(weights) @ np.abs(numbers)
    bound = HALF_STEP[dtype] * np.abs(wanted) + SUMS * sizes + 2.0**-22 * LEAST * np.abs(weights).sum(1)
    return np.abs(product.found()[0].astype(np.float64) - wanted), bound


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("form", ["q4_0", "int4-128"])
def test_a_large_number_takes_no_bits_of_the_others(form, dtype):
    """It meets a weight of 0 in some row: there the others are all of the result."""
    weights = Product(form, 1, dtype=dtype).weight.numbers
    row, column = np.argwhere(weights == 0)[0]
    x = np.linspace(-1.0, 1.0, 256)
    x[column] = 2.0**9
    x = np.where(np.abs(x) < 2.0**-2, 0.0, x)  # whole numbers of 24 bits have all bits of the others
    difference, bound = differences(form, x, dtype)
    assert difference[row] <= bound[row]


@pytest.mark.parametrize("size", [2.0**-140, 2.0**-120, 2.0**-99, 2.0**-20, 1.0, 127 / 64, 1.9921875, 2.0**100])
def test_numbers_of_any_size(size):
    """Also next to where the step of the whole numbers changes, and below the normal numbers."""
    difference, bound = differences("q4_0", np.linspace(-size, size, 256), "float32")
    assert (difference <= bound).all()


@pytest.mark.parametrize("number", [np.inf, -np.inf, np.nan])
def test_what_is_no_number_gives_none(number):
    x = np.linspace(-1.0, 1.0, 256, dtype=np.float32)
    x[70] = number
    product = Product("q4_0", 1)
    product.f.arrays["x"] = x[None]
    assert not np.isfinite(product.found()).any()


def test_zero_points_take_the_numbers_that_codes_multiply():
    """Of equal numbers that 24 bits do not hold: codes at their zero point give nothing, whatever the numbers are."""
    product = Product("int4-128", 1)
    x = np.full(256, np.float32(1.0) / 3)
    x[::2] = -x[::2] * np.float32(1.0000001)
    product.f.arrays |= {"x": x[None].astype(np.float32), "b": np.zeros(48, np.float32)}
    wanted = product.weight.numbers @ product.f.arrays["x"][0].astype(np.float64)
    step = 2.0**-23 / 3 * np.abs(product.weight.numbers).sum(1)
    sums = SUMS * np.abs(wanted) + 2.0**-24 * 16 * np.abs(product.weight.numbers).max(1)
    assert (np.abs(product.found()[0] - wanted) <= step + sums).all()
