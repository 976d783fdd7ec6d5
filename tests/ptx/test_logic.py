"""Bits, shifts, comparisons and selection against Python's integers."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

from tests.ptx.lanes import apply
from tests.ptx.oracle import EDGES, pairs

WORDS = np.array([0, 1, 2, 31, 32, 33, 64, 255, 0x8000, 0xFFFF, 0x12345678, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF], "u4")
A, B = pairs(WORDS)
FULL = (1 << 32) - 1


def check(body: str, function: object, *inputs: np.ndarray) -> None:
    got = apply(body, "u4", *inputs).tolist()
    for result, *values in zip(got, *(each.tolist() for each in inputs), strict=True):
        assert result == function(*values) & FULL, values


def signed(value: int) -> int:
    return value - (1 << 32) if value >> 31 else value


def _field(value: int, position: int, length: int, sign: bool, width: int = 32) -> int:
    """bfe, bit by bit (PTX ISA)."""
    position, length, last = position & 255, length & 255, width - 1
    top = (value >> min(position + length - 1, last)) & 1 if sign and length else 0
    bits = [(value >> (position + k)) & 1 if k < length and position + k <= last else top for k in range(width)]
    return sum(bit << k for k, bit in enumerate(bits))


def test_logic():
    check("and.b32 %d, %x0, %x1;", lambda a, b: a & b, A, B)
    check("or.b32 %d, %x0, %x1;", lambda a, b: a | b, A, B)
    check("xor.b32 %d, %x0, %x1;", lambda a, b: a ^ b, A, B)
    check("not.b32 %d, %x0;", lambda a: ~a, WORDS)


def test_shifts_by_the_width_and_more():
    check("shl.b32 %d, %x0, %x1;", lambda a, b: a << min(b, 32), A, B)
    check("shr.u32 %d, %x0, %x1;", lambda a, b: a >> min(b, 32), A, B)
    check("shr.s32 %d, %x0, %x1;", lambda a, b: signed(a) >> min(b, 32), A, B)
    check("shr.s32 %d, %x0, 40;", lambda a: signed(a) >> 32, WORDS)
    halves = A.astype("u2")
    assert (
        apply("shl.b16 %d, %x0, %x1;", "u2", halves, B) == (halves.astype(object) << np.minimum(B, 16)) % 65536
    ).all()


def test_funnel_shifts():
    c = np.resize(WORDS[::-1], len(A))
    check("shf.l.wrap.b32 %d, %x0, %x1, %x2;", lambda a, b, n: (((b << 32) | a) << (n & 31)) >> 32, A, B, c)
    check("shf.r.clamp.b32 %d, %x0, %x1, %x2;", lambda a, b, n: ((b << 32) | a) >> min(n, 32), A, B, c)


def test_bit_fields():
    c = np.resize(WORDS, len(A) + 5)[5:]
    check("bfe.u32 %d, %x0, %x1, %x2;", lambda a, p, n: _field(a, p, n, False), A, B, c)
    check("bfe.s32 %d, %x0, %x1, %x2;", lambda a, p, n: _field(a, p, n, True), A, B, c)
    check("bfe.s32 %d, %x0, 4, 8;", lambda a: _field(a, 4, 8, True), WORDS)
    check("bfe.u32 %d, %x0, 28, 8;", lambda a: _field(a, 28, 8, False), WORDS)

    def insert(a: int, b: int, p: int) -> int:
        mask = ((1 << 5) - 1) << (p & 255)
        return (b & ~mask) | ((a << (p & 255)) & mask)

    check("bfi.b32 %d, %x0, %x1, %x2, 5;", insert, A, B, c)


@pytest.mark.parametrize("place", [(16, 16), (16, 48), (0, 64), (0, 1), (63, 1), (40, 40), (70, 4), (5, 0), (300, 8)])
@pytest.mark.parametrize("width", [32, 64])
def test_bit_fields_at_fixed_places(width: int, place: tuple[int, int]) -> None:
    values = np.array([0, 1, 0x1234_5678_9ABC_DEF0, 0xFEDC_BA98_7654_3210, 1 << 63, (1 << 64) - 1], "u8")
    values = values if width == 64 else np.concatenate([values >> np.uint64(32), values]).astype("u4")
    for kind in "us":
        got = apply(f"bfe.{kind}{width} %d, %x0, {place[0]}, {place[1]};", values.dtype.str[1:], values)
        assert got.tolist() == [_field(value, *place, kind == "s", width) for value in values.tolist()], kind


def test_bytes_and_counts():
    def permute(a: int, b: int, s: int) -> int:
        data = ((b << 32) | a).to_bytes(8, "little")
        chosen = [(data[s >> 4 * k & 7], s >> 4 * k & 8) for k in range(4)]
        return sum((byte if not sign else 255 * (byte >> 7)) << 8 * k for k, (byte, sign) in enumerate(chosen))

    c = np.resize(WORDS, len(A) + 3)[3:]
    check("prmt.b32 %d, %x0, %x1, %x2;", permute, A, B, c)
    for fixed in (0xB362, 0x5410, 0x7632, 0x0123, 0x6024, 0x3333):  # with a sign; halves; bytes of one word, of two
        check(f"prmt.b32 %d, %x0, %x1, {fixed};", lambda a, b, fixed=fixed: permute(a, b, fixed), A, B)
    check("popc.b32 %d, %x0;", lambda a: a.bit_count(), WORDS)
    check("clz.b32 %d, %x0;", lambda a: 32 - a.bit_length(), WORDS)
    check("brev.b32 %d, %x0;", lambda a: int(f"{a:032b}"[::-1], 2), WORDS)


@pytest.mark.parametrize("table", [0, 0x1B, 0x6A, 0x80, 0xC5, 0xFF])
def test_every_function_of_three(table):
    def logic(a: int, b: int, c: int) -> int:
        return sum((table >> ((a >> k & 1) << 2 | (b >> k & 1) << 1 | (c >> k & 1)) & 1) << k for k in range(32))

    check(f"lop3.b32 %d, %x0, %x1, %x2, {table};", logic, A, B, np.resize(WORDS, len(A) + 1)[1:])


ORDER = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}


@pytest.mark.parametrize("name", [*ORDER, "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan"])
def test_float_comparisons(name):
    """The first six are false for NaN, the next six true."""
    a, b = pairs(EDGES)
    got = apply(f"setp.{name}.f32 %p, %x0, %x1; selp.b32 %d, 1, 0, %p;", "u4", a, b, extra=".reg .pred %p;")
    for result, x, y in zip(got.tolist(), a.tolist(), b.tolist(), strict=True):
        unordered = math.isnan(x) or math.isnan(y)
        if name in ("num", "nan"):
            assert result == (unordered == (name == "nan"))
        elif unordered:
            assert result == name.endswith("u")
        else:
            assert result == eval(f"x {ORDER[name.removesuffix('u')]} y")


@pytest.mark.parametrize("kind", ["f16x2", "bf16x2"])
@pytest.mark.parametrize("name", [*ORDER, "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan"])
def test_comparisons_of_two_halves(name, kind):
    """The first predicate is that of the low halves, the second that of the high ones."""
    edges = np.array([0.0, -0.0, 1.5, -1.5, 6e-8, 3.0, np.inf, -np.inf, np.nan, 2.0], np.float32)
    dtype = np.float16 if kind == "f16x2" else ml_dtypes.bfloat16
    a, b = pairs(edges.astype(dtype))
    shifted = np.roll(a, 7), np.roll(b, 3)
    words = [np.stack([low, high], 1).view("u4").reshape(-1) for low, high in zip((a, b), shifted, strict=True)]
    body = f"setp.{name}.{kind} %p|%q, %x0, %x1; selp.b32 %n3, 1, 0, %p; selp.b32 %d, 2, 0, %q; or.b32 %d, %d, %n3;"
    got = apply(body, "u4", *words, extra=".reg .pred %p; .reg .pred %q;")
    wanted = [compared(name, x.astype(float), y.astype(float)) for x, y in ((a, b), shifted)]
    assert got.tolist() == (wanted[0] + 2 * wanted[1]).tolist()
    assert {1, 2} < set(got.tolist())


def compared(name: str, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    unordered = np.isnan(x) | np.isnan(y)
    if name in ("num", "nan"):
        return (unordered == (name == "nan")).astype(int)
    functions = {"eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater}
    function = {**functions, "ge": np.greater_equal}[name[:2]]
    return np.where(unordered, name.endswith("u"), function(x, y)).astype(int)


def test_integer_comparisons_and_pairs_of_predicates():
    extra = ".reg .pred %p<4>;"
    body = "setp.{}.{} %p0|%p1, %x0, %x1; selp.b32 %d, 1, 0, {};"
    for kind, view in (("s32", "i4"), ("u32", "u4")):
        x, y = A.view(view), B.view(view)
        for name, expected in (("lt", x < y), ("ge", x >= y), ("eq", x == y)):
            assert (apply(body.format(name, kind, "%p0"), "u4", A, B, extra=extra) == expected).all()
            assert (apply(body.format(name, kind, "%p1"), "u4", A, B, extra=extra) == ~expected).all()
    both = "setp.lt.u32 %p0, %x0, 100; setp.gt.and.u32 %p1, %x1, 40, !%p0; selp.b32 %d, 7, 3, %p1;"
    assert (apply(both, "u4", A, B, extra=extra) == np.where((B > 40) & ~(A < 100), 7, 3)).all()


def test_constants_of_untyped_instructions_are_bits():
    body = "setp.gt.f32 %p, %x0, 0f3F800000; selp.b32 %f, 1065353216, %x0, %p; add.f32 %d, %f, 0f00000000;"
    got = apply(body, "f4", np.array([3, 0.5], "f4"), extra=".reg .pred %p; .reg .b32 %f;")
    assert got.tolist() == [1.0, 0.5]
