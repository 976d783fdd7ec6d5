"""Each arithmetic instruction against exact numbers, rounded by hand, and integers of Python."""

from __future__ import annotations

import math
import operator

import ml_dtypes
import numpy as np
import pytest

from tests.ptx.lanes import apply, same
from tests.ptx.oracle import EDGES, compute, pairs

A, B = pairs(EDGES)
RNG = np.random.default_rng(1)
WORDS = np.array([0, 1, 2, 3, 7, 31, 32, 33, 255, 0x7FFF, 0x8000, 0xFFFF, 0x10000, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF])
FLOATS = {"add": operator.add, "sub": operator.sub, "mul": operator.mul}
FLUSHED = 2.0**-126


@pytest.mark.parametrize("name", FLOATS)
def test_float32(name):
    assert same(apply(f"{name}.rn.f32 %d, %x0, %x1;", "f4", A, B), compute(FLOATS[name], "f32", A, B)).all()


@pytest.mark.parametrize("name", FLOATS)
def test_float32_toward_zero(name):
    finite = (np.abs(A) < 1e38) & (np.abs(B) < 1e38)
    a, b = A[finite], B[finite]
    expected = compute(FLOATS[name], "f32", a, b, toward_zero=True)
    assert same(apply(f"{name}.rz.f32 %d, %x0, %x1;", "f4", a, b), expected).all()


def test_fused_multiply_add_rounds_once():
    """Also where the sum in float64 would be halfway between two float32."""
    a = np.concatenate([np.tile(A, 3), np.array([1 + 2.0**-12, 2.0**12 + 1], np.float32)])
    b = np.concatenate([np.tile(B, 3), np.array([1 + 2.0**-12, 2.0**12 + 1], np.float32)])
    c = np.concatenate(
        [np.repeat(np.array([1, 1e-45, 0.1], np.float32), len(A)), np.array([2.0**-60, -(2.0**-60)], np.float32)]
    )
    with np.errstate(all="ignore"):
        normal = np.abs(a.astype(np.float64) * b + c) >= FLUSHED
    a, b, c = a[normal], b[normal], c[normal]
    expected = compute(lambda x, y, z: x * y + z, "f32", a, b, c)
    assert same(apply("fma.rn.f32 %d, %x0, %x1, %x2;", "f4", a, b, c), expected).all()


def test_flush_to_zero():
    """Subnormal sources and results become zero."""
    sources = [np.where(np.abs(x) < FLUSHED, np.copysign(np.float32(0), x), x) for x in (A, B)]
    product = compute(operator.mul, "f32", *sources)
    expected = np.where(np.abs(product) < FLUSHED, np.copysign(np.float32(0), product), product)
    assert same(apply("mul.ftz.f32 %d, %x0, %x1;", "f4", A, B), expected).all()


def test_saturate():
    with np.errstate(all="ignore"):
        total = A.astype(np.float64) + B
    expected = np.where(np.isnan(total), 0, np.clip(total, 0, 1)).astype(np.float32)
    got = apply("add.sat.f32 %d, %x0, %x1;", "f4", A, B)
    assert (got == expected).all()
    assert not np.signbit(got).any()


@pytest.mark.parametrize("name", ["min", "max"])
@pytest.mark.parametrize("nan", ["", ".NaN"])
def test_extremes(name, nan):
    """-0 is below +0. Of a NaN and a number the number, or the NaN."""

    def one(x: float, y: float) -> float:
        if math.isnan(x) or math.isnan(y):
            return math.nan if nan else (y if math.isnan(x) else x)
        order = sorted((x, y), key=lambda value: (value, math.copysign(1, value)))
        return order[0 if name == "min" else 1]

    expected = np.array([one(float(x), float(y)) for x, y in zip(A, B, strict=True)], np.float32)
    assert same(apply(f"{name}{nan}.f32 %d, %x0, %x1;", "f4", A, B), expected).all()


@pytest.mark.parametrize("name", ["add", "mul", "fma"])
@pytest.mark.parametrize(("kind", "form"), [(np.float16, "f16"), (ml_dtypes.bfloat16, "bf16")])
def test_pairs_of_halves(name, kind, form):
    values = np.array(
        [0, -0.0, 1, -1.5, 1e-6, 6e-8, 65504, -65504, np.inf, np.nan, 0.1, 3e-5, 1.001, 255.5], np.float32
    )
    low, high = pairs(values.astype(kind))
    joined = np.stack([low, high], 1).view(np.uint32)[:, 0]
    other = np.roll(joined, 5)
    words = [joined, other, np.roll(joined, 11)][: 3 if name == "fma" else 2]
    operands = ", ".join(f"%x{place}" for place in range(len(words)))
    rounding = ".rn" if name == "fma" else ""
    got = apply(f"{name}{rounding}.{form}x2 %d, {operands};", "u4", *words).view(kind)
    function = FLOATS.get(name, lambda x, y, z: x * y + z)
    parts = [word.view(kind).astype(np.float32) for word in words]
    assert same(got.astype(np.float32), compute(function, form, *parts)).all()


@pytest.mark.parametrize(
    ("instruction", "function"),
    [
        ("sqrt.rn.f32", np.sqrt),
        ("rcp.rn.f32", lambda x: 1 / x),
        ("rsqrt.approx.f32", lambda x: 1 / np.sqrt(x)),
        ("ex2.approx.f32", np.exp2),
        ("lg2.approx.f32", np.log2),
        ("sin.approx.f32", np.sin),
        ("cos.approx.f32", np.cos),
        ("tanh.approx.f32", np.tanh),
        ("abs.f32", np.abs),
        ("neg.f32", np.negative),
    ],
)
def test_functions(instruction, function):
    """Approximate instructions are exact here, up to one rounding."""
    with np.errstate(all="ignore"):
        expected = function(EDGES.astype(np.float64)).astype(np.float32)
    assert same(apply(f"{instruction} %d, %x0;", "f4", EDGES), expected).all()


def test_division():
    with np.errstate(all="ignore"):
        exact = A.astype(np.float64) / B
    normal = (np.abs(exact) >= FLUSHED) | (exact == 0) | ~np.isfinite(exact)
    for instruction in ("div.rn.f32", "div.full.f32"):
        with np.errstate(all="ignore"):
            assert same(apply(f"{instruction} %d, %x0, %x1;", "f4", A, B), exact.astype(np.float32))[normal].all()


def _signed(value: int, bits: int) -> int:
    value %= 1 << bits
    return value - (1 << bits) if value >> (bits - 1) else value


def _quotient(x: int, y: int) -> int:
    return -1 if y == 0 else (abs(x) // abs(y)) * (1 if (x < 0) == (y < 0) else -1)


INTEGERS = {
    "add": lambda x, y, bits: x + y,
    "sub": lambda x, y, bits: x - y,
    "mul.lo": lambda x, y, bits: x * y,
    "mul.hi": lambda x, y, bits: (x * y) >> bits,
    "div": lambda x, y, bits: _quotient(x, y),
    "rem": lambda x, y, bits: x - y * _quotient(x, y),
    "min": lambda x, y, bits: min(x, y),
    "max": lambda x, y, bits: max(x, y),
}


@pytest.mark.parametrize("bits", [16, 32, 64])
@pytest.mark.parametrize("kind", ["u", "s"])
def test_integers(bits, kind):
    scale = 1 << (bits - 32) if bits == 64 else 1
    values = np.unique(np.concatenate([WORDS, WORDS * scale]).astype(object) % (1 << bits)).astype(f"u{bits // 8}")
    a, b = pairs(values)
    for name, function in INTEGERS.items():
        got = apply(f"{name}.{kind}{bits} %d, %x0, %x1;", f"u{bits // 8}", a, b)
        for x, y, z in zip(a.tolist(), b.tolist(), got.tolist(), strict=True):
            x, y = (_signed(x, bits), _signed(y, bits)) if kind == "s" else (x, y)
            if kind == "s" and name in ("div", "rem") and y == -1:
                continue  # the smallest number by -1 overflows
            assert z == function(x, y, bits) % (1 << bits), (name, x, y)


def test_wide_products():
    a, b = pairs(WORDS.astype("u4"))
    for kind in "us":
        view = (
            a.view("i4" if kind == "s" else "u4").astype(object),
            b.view("i4" if kind == "s" else "u4").astype(object),
        )
        assert (apply(f"mul.wide.{kind}32 %d, %x0, %x1;", "u8", a, b) == (view[0] * view[1]) % (1 << 64)).all()


@pytest.mark.parametrize("kind", ["u", "s"])
@pytest.mark.parametrize("number", [-(1 << 31), -1, 0xFFFFFFFF, 7])
def test_wide_products_with_a_constant(kind: str, number: int):
    """A constant has the 32 bits of the factor: `mul.wide.u32` by -2147483648 multiplies by 2^31."""
    factor = number % (1 << 32) - (1 << 32 if kind == "s" and number % (1 << 32) >> 31 else 0)
    words = WORDS.astype("u4")
    expected = words.view("i4" if kind == "s" else "u4").astype(object) * factor % (1 << 64)
    assert (apply(f"mul.wide.{kind}32 %d, %x0, {number};", "u8", words) == expected).all()


def test_carries():
    """128 bits from two words of 32: the carry of the lower sum goes into the upper."""
    a, b = pairs(WORDS.astype("u4"))
    body = "add.cc.u32 %lo, %x0, %x1; addc.u32 %hi, %x0, %x1; mov.b64 %d, {%lo, %hi};"
    low, total = a.astype(object) + b, a.astype(object) + b
    expected = (low % (1 << 32)) + (((total + (low >> 32)) % (1 << 32)) << 32)
    assert (apply(body, "u8", a, b, extra=".reg .b32 %lo; .reg .b32 %hi;") == expected).all()


def test_packed_integers():
    a, b = pairs(RNG.integers(0, 1 << 32, 40).astype("u4"))
    for name, kind, function in (
        ("add.s16x2", "i2", np.add),
        ("min.s16x2", "i2", np.minimum),
        ("max.u16x2", "u2", np.maximum),
    ):
        expected = function(a.view(kind), b.view(kind)).astype(kind).view("u4")
        assert (apply(f"{name} %d, %x0, %x1;", "u4", a, b) == expected).all()
