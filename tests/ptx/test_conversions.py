"""cvt and mov on all patterns of small formats, and on halfway cases of large ones."""

from __future__ import annotations

import math
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from tests.ptx.lanes import apply, same
from tests.ptx.oracle import EDGES, rounded

RNG = np.random.default_rng(2)
ALL16 = np.arange(1 << 16, dtype="u2")
BF16 = np.dtype(ml_dtypes.bfloat16)
ANY = RNG.integers(0, 1 << 32, 20000).astype("u4")
HALFWAY = (RNG.integers(0, 1 << 16, 4000).astype("u4") << 16) | np.resize([0x8000, 0x7FFF, 0x8001], 4000).astype("u4")
FLOATS = np.concatenate([EDGES, ANY.view("f4"), HALFWAY.view("f4")])


def test_every_bf16_widens():
    expected = ALL16.view(BF16).astype(np.float32)
    assert same(apply("cvt.f32.bf16 %d, %x0;", "f4", ALL16), expected).all()


def test_every_half_widens():
    assert same(apply("cvt.f32.f16 %d, %x0;", "f4", ALL16), ALL16.view("f2").astype("f4")).all()


@pytest.mark.parametrize(("form", "kind"), [("bf16", BF16), ("f16", np.dtype("f2"))])
def test_rounding_to_sixteen_bits(form, kind):
    """Of pairs, the first source is the upper half."""
    with np.errstate(all="ignore"):
        expected = FLOATS.astype(kind).astype("f4")
    one = apply(f"cvt.rn.{form}.f32 %d, %x0;", "u2", FLOATS).view(kind).astype("f4")
    assert same(one, expected).all()
    two = apply(f"cvt.rn.{form}x2.f32 %d, %x0, %x1;", "u4", FLOATS, np.roll(FLOATS, 7))
    assert same((two >> 16).astype("u2").view(kind).astype("f4"), expected).all()
    assert same(two.astype("u2").view(kind).astype("f4"), np.roll(expected, 7)).all()


@pytest.mark.parametrize(("form", "kind"), [("bf16", BF16), ("f16", np.dtype("f2"))])
def test_cutting_to_sixteen_bits(form, kind):
    few = FLOATS[::17][np.isfinite(FLOATS[::17])]
    got = apply(f"cvt.rz.{form}.f32 %d, %x0;", "u2", few).view(kind).astype("f4")
    assert same(got, np.copysign([rounded(Fraction(float(x)), form, True) for x in few], few).astype("f4")).all()


def test_nan_is_one_pattern():
    nan = np.array([math.nan, -math.nan], np.float32)
    assert (apply("cvt.rn.bf16.f32 %d, %x0;", "u2", nan) == 0x7FFF).all()


@pytest.mark.parametrize(("form", "largest"), [("e4m3", 448.0), ("e5m2", 57344.0)])
def test_fp8(form, largest):
    """Each pattern back and forth, and the nearest one by search; too large is the largest."""
    kind = np.dtype(getattr(ml_dtypes, {"e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2"}[form]))
    patterns = np.arange(256, dtype="u1")
    values = patterns.view(kind).astype(np.float64)
    pair = apply(f"cvt.rn.f16x2.{form}x2 %d, %x0;", "u4", ALL16)
    with np.errstate(all="ignore"):
        assert same((pair >> 16).astype("u2").view("f2"), values[ALL16 >> 8].astype("f2")).all()
        assert same(pair.astype("u2").view("f2"), values[ALL16 & 255].astype("f2")).all()
    finite = np.sort(np.unique(values[np.isfinite(values)]))
    middles = ((finite[1:] + finite[:-1]) / 2).astype(np.float32)
    given = np.concatenate([EDGES, middles, np.nextafter(middles, np.float32(9e9)), RNG.normal(0, 30, 3000)]).astype(
        "f4"
    )
    got = apply(f"cvt.rn.satfinite.{form}x2.f32 %d, %x0, %x0;", "u2", given)
    assert ((got >> 8) == (got & 255)).all()
    for value, pattern in zip(given.tolist(), (got & 255).astype("u1"), strict=True):
        result = float(values[pattern])
        if math.isnan(value):
            assert pattern == 0x7F
            continue
        clipped = min(max(value, -largest), largest)
        distance = np.abs(finite - clipped)
        nearest = finite[distance == distance.min()]
        assert result in nearest
        assert math.copysign(1, result) == math.copysign(1, value)
        if len(nearest) == 2:
            assert pattern % 2 == 0  # ties to even


@pytest.mark.parametrize("rounding", ["rni", "rzi", "rmi", "rpi"])
@pytest.mark.parametrize("kind", ["s8", "u8", "s16", "u16", "s32", "u32", "s64", "u64"])
def test_float_to_integer(rounding, kind):
    """Clamped to the range. A NaN is 0, of 64 bits only the top bit."""
    values = np.concatenate(
        [EDGES, np.array([2.5, 3.5, -2.5, 127.5, 255.5, -129, 1e10, -1e10, 2.0**63, 2.0**31], "f4")]
    )
    bits, signed = int(kind[1:]), kind[0] == "s"
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    how = {"rni": round, "rzi": math.trunc, "rmi": math.floor, "rpi": math.ceil}[rounding]
    got = apply(f"cvt.{rounding}.{kind}.f32 %d, %x0;", f"{kind[0].replace('s', 'i')}{max(bits, 16) // 8}", values)
    for value, result in zip(values.tolist(), got.tolist(), strict=True):
        if math.isnan(value):
            assert result % (1 << bits) == (1 << 63 if bits == 64 else 0)
        else:
            assert result == (min(max(how(value), low), high) if math.isfinite(value) else (low if value < 0 else high))


@pytest.mark.parametrize("kind", ["s32", "u32", "s64", "u64", "s16"])
@pytest.mark.parametrize("form", ["f32", "f16"])
def test_integer_to_float(kind, form):
    size = int(kind[1:]) // 8
    dtype = f"{kind[0].replace('s', 'i')}{size}"
    edges = [0, 1, (1 << 24) + 1, (1 << 24) + 3, 65519, 65520, 2049, (1 << 8 * size) - 1, 1 << (8 * size - 1)]
    values = np.array([edge % (1 << 8 * size) for edge in edges], f"u{size}").view(dtype)
    got = apply(f"cvt.rn.{form}.{kind} %d, %x0;", f"f{int(form[1:]) // 8}", values)
    assert same(got, np.array([rounded(Fraction(int(value)), form) for value in values]).astype(got.dtype)).all()


def test_tf32_rounds_ties_away():
    finite = FLOATS[np.isfinite(FLOATS) & (np.abs(FLOATS) < 1e38)]
    bits = apply("cvt.rna.tf32.f32 %d, %x0;", "u4", finite)
    assert (bits & 0x1FFF == 0).all()
    error = np.abs(bits.view("f4").astype(np.float64) - finite)
    unit = 2.0 ** (np.maximum(np.frexp(finite)[1] - 1, -126) - 10)
    assert (error <= unit / 2).all()
    tie = error == unit / 2
    assert (np.abs(bits.view("f4")[tie]) > np.abs(finite[tie])).all()


def test_moves_take_registers_apart():
    words = RNG.integers(0, 1 << 63, 100).astype("u8")
    extra = ".reg .b32 %a; .reg .b32 %b; .reg .b16 %h<4>;"
    assert (
        apply("mov.b64 {%a, %b}, %x0; mov.b64 %d, {%b, %a};", "u8", words, extra=extra) == (words << 32) | (words >> 32)
    ).all()
    assert (apply("mov.b64 {_, %b}, %x0; mov.b32 %d, %b;", "u4", words, extra=extra) == words >> 32).all()
    halves = words.astype("u4")
    swapped = apply("mov.b32 {%h0, %h1}, %x0; mov.b32 %d, {%h1, %h0};", "u4", halves, extra=extra)
    assert (swapped == (halves << 16) | (halves >> 16)).all()
    assert (apply("mov.b32 {%h0, %h1}, %x0; mov.b32 %d, {%h0, %h1};", "u4", halves, extra=extra) == halves).all()


def test_integers_of_other_widths():
    words = RNG.integers(0, 1 << 32, 300).astype("u4")
    assert (apply("cvt.s64.s32 %d, %x0;", "i8", words) == words.view("i4")).all()
    assert (apply("cvt.u64.u32 %d, %x0;", "u8", words) == words).all()
    assert (apply("cvt.s32.s8 %d, %x0;", "i4", words) == words.astype("i1")).all()
    assert (apply("cvt.u16.u32 %d, %x0;", "u2", words) == words.astype("u2")).all()
    assert (apply("cvt.s16.s8 %d, %x0;", "i2", words.astype("u2")) == words.astype("i1")).all()
